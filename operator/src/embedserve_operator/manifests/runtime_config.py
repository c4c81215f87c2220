"""Builds the configuration file of the runtime: the contract between operator and runtime.

Only what the resource or the operator says is written; everything else keeps the default of the runtime.
"""

from __future__ import annotations

from typing import Any

import yaml

from embedserve_operator.api.cache import OnnxConversion
from embedserve_operator.api.hardware import HardwareClass
from embedserve_operator.api.network import ClientSettings
from embedserve_operator.api.sources import ModelSource
from embedserve_operator.api.types import Batching, EmbeddingServiceSpec
from embedserve_operator.manifests.placement import find_accelerators
from embedserve_operator.settings import RenderSettings
from embedserve_operator.state.resource import Resource

SERVING_PORT = 8080
MANAGEMENT_PORT = 8081
PINNED_PORT = 8082
"""The port for requests that come by a vector space's own name."""
GRPC_PORT = 8083
PINNED_GRPC_PORT = 8084
ALL_ADDRESSES = "::"
"""The address that pods listen on: every address of IPv4 and IPv6, of whichever the cluster has."""
STORE_PATH = "/models"
KEYS_PATH, KEYS_FILE = "/etc/embedserve-keys", "api-keys"
"""The folder in which the Secret of API keys is mounted, and its one file."""
VOLUME_PATH = "/volume"
ENDPOINT_DRAIN_SECONDS = 5
"""The time for which a pod serves normally after the stop signal, while load balancers move away."""
_MIN_GRACE_SECONDS = 30
_MAX_GRACE_SECONDS = 300


def compute_grace_seconds(spec: EmbeddingServiceSpec) -> int:
    """Return the time that accepted requests have to finish after the drain: as long as a request may take,
    within bounds.
    """
    timeout = spec.batching.request_timeout_seconds if spec.batching is not None else None
    return max(_MIN_GRACE_SECONDS, min(timeout or 0, _MAX_GRACE_SECONDS))


def format_source_path(source: ModelSource) -> str:
    """Return the source as the runtime reads it: OWNER/NAME, a URL or a folder."""
    if source.is_remote:
        return describe_source(source)
    folder = source.volume or source.image
    path = folder.path.strip("/") if folder is not None else ""
    return f"{VOLUME_PATH}/{path}" if path else VOLUME_PATH


def describe_source(source: ModelSource) -> str:
    """Return the source as people read it: a URL without its query, which may carry a signature."""
    if source.hugging_face is not None:
        return source.hugging_face.repo
    if source.http is not None:
        return source.http.url.partition("?")[0]
    if source.s3 is not None:
        return source.s3.uri
    if source.volume is not None:
        return f"{source.volume.claim_name}:/{source.volume.path.strip('/')}"
    if source.image is not None:
        return f"{source.image.reference}:/{source.image.path.strip('/')}"
    raise ValueError("a source without a kind")


def _drop_none(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None and value != {}}


def _build_model_section(spec: EmbeddingServiceSpec, settings: RenderSettings) -> dict[str, Any]:
    source = spec.model.source
    hub = source.hugging_face
    return _drop_none(
        {
            "source": format_source_path(source),
            "revision": hub.revision if hub is not None else None,
            "refresh": spec.model.refresh,
            "sha256": source.http.sha256 if source.http is not None else None,
            "s3_endpoint": source.s3.endpoint if source.s3 is not None else None,
            "store": STORE_PATH,
            "endpoint": (hub.endpoint or settings.hf_endpoint) if hub is not None else None,
            "onnx_file": spec.model.onnx_file,
            "task": spec.model.task if spec.model.task != "auto" else None,
            "outputs": list(spec.model.outputs) or None,
            "adapters": list(spec.model.adapters) or None,
            "pooling": spec.model.pooling,
            "max_length": spec.model.max_length,
            "dimensions": spec.model.dimensions,
            "prompts": spec.prompts,
            "default_prompt": spec.prompt_name,
        }
    )


def _build_batching_section(batching: Batching | None) -> dict[str, Any]:
    if batching is None:
        return {}
    return _drop_none(
        {
            "max_batch_tokens": batching.max_batch_tokens,
            "max_queue_tokens": batching.max_queue_tokens,
            "max_queue_inputs": batching.max_queue_inputs,
            "max_client_batch_size": batching.max_client_batch_size,
            "request_timeout_seconds": batching.request_timeout_seconds,
            "auto_truncate": batching.auto_truncate,
            "cache_bytes": batching.cache_bytes,
            "cache_seconds": batching.cache_seconds,
        }
    )


def _build_engine_section(spec: EmbeddingServiceSpec, hardware: HardwareClass) -> dict[str, Any]:
    """Return what the user says, or else what the class says; nothing where both leave it to the runtime."""
    kind = spec.engine if spec.engine != "auto" else hardware.engine
    precision = spec.model.precision if spec.model.precision != "auto" else hardware.precision
    settings = {"kind": kind, "precision": precision, "min_cosine": spec.model.min_cosine}
    return {key: value for key, value in settings.items() if value not in ("auto", None)}


def _build_onnx_section(conversion: OnnxConversion | None) -> dict[str, Any]:
    """Return the settings of the conversion.

    Nothing is converted unasked, and what others have converted on the same volume is not used.
    """
    if conversion is None:
        return {"convert": "Never"}
    floors = conversion.parity
    parity = (
        {}
        if floors is None
        else {
            "min_mean_cosine": floors.min_mean_cosine,
            "min_cosine": floors.min_cosine,
            "min_rank_agreement": floors.min_rank_agreement,
        }
    )
    return _drop_none(
        {
            "convert": conversion.convert,
            "precision": None if conversion.precision == "auto" else [conversion.precision],
            "outputs": None if conversion.outputs is None else list(conversion.outputs),
            "parity": _drop_none(parity),
        }
    )


def _format_yaml(config: dict[str, Any]) -> str:
    return yaml.safe_dump(_drop_none(config), sort_keys=False, width=110, allow_unicode=True)


def build_fetch_yaml(spec: EmbeddingServiceSpec, settings: RenderSettings, *, converts: bool) -> str:
    """Return the configuration file of a fetch Job, which tells its progress at the management port.

    `converts` says that a conversion follows, by an image that can export what this one cannot.
    """
    server = {"host": ALL_ADDRESSES, "management_port": MANAGEMENT_PORT}
    exported = {"export_elsewhere": True} if converts else {}
    return _format_yaml({"model": {**_build_model_section(spec, settings), **exported}, "server": server})


def build_plan_yaml(spec: EmbeddingServiceSpec, settings: RenderSettings) -> str:
    """Return the configuration file of a Job that reads how large the model is."""
    return _format_yaml({"model": _build_model_section(spec, settings)})


def build_convert_yaml(spec: EmbeddingServiceSpec, settings: RenderSettings) -> str:
    """Return the configuration file of a conversion Job; the model is on the volume."""
    return _format_yaml(
        {
            "model": {**_build_model_section(spec, settings), "offline": True},
            "engine": _build_engine_section(spec, settings.classes[spec.hardware.class_]),
            "onnx": _build_onnx_section(spec.onnx),
        }
    )


def _build_client_settings(clients: ClientSettings | None) -> dict[str, Any]:
    if clients is None:
        return {}
    return {
        "client_header": clients.header,
        "client_requests_per_minute": clients.requests_per_minute,
        "client_tokens_per_minute": clients.tokens_per_minute,
    }


def build_runtime_yaml(resource: Resource, spec: EmbeddingServiceSpec, settings: RenderSettings) -> str:
    """Return the configuration file of the pods.

    With a cache they take models from it and from nowhere else.
    """
    cached = spec.cache is not None
    space_host = f"{resource.key.name}-{{space8}}.{resource.key.namespace}.svc"
    grpc = spec.service.grpc_port
    server = _drop_none(
        {
            "host": ALL_ADDRESSES,
            "port": SERVING_PORT,
            "management_port": MANAGEMENT_PORT,
            "grpc_port": GRPC_PORT if grpc is not None else None,
            "pinned_grpc_port": PINNED_GRPC_PORT if grpc is not None else None,
            "space_grpc": f"{space_host}:{grpc}" if grpc is not None else None,
            "pinned_port": PINNED_PORT,
            "api_keys_file": f"{KEYS_PATH}/{KEYS_FILE}" if spec.auth is not None else None,
            # A single process does not keep an accelerator busy with short texts.
            "http_workers": "auto" if find_accelerators(spec, settings) is not None else None,
            "space_url": f"http://{space_host}",
            "openai_token_ids": spec.api.openai_token_ids or None,
            "served_model_name": spec.served_model_name or describe_source(spec.model.source),
            **_build_client_settings(spec.api.clients),
            "cors_origins": list(spec.api.cors_origins or ()) or None,
            "compress_from_bytes": spec.api.compress_from_bytes,
            "endpoint_drain_seconds": ENDPOINT_DRAIN_SECONDS,
            "shutdown_grace_seconds": compute_grace_seconds(spec),
        }
    )
    return _format_yaml(
        {
            "model": {**_build_model_section(spec, settings), **({"offline": True} if cached else {})},
            "server": server,
            "batching": _build_batching_section(spec.batching),
            "engine": _build_engine_section(spec, settings.classes[spec.hardware.class_]),
            "onnx": _build_onnx_section(spec.onnx) if cached or spec.onnx is not None else {},
        }
    )
