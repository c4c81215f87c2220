"""The runtime's configuration file: the contract between operator and runtime.

Only what the resource or the operator says is written; everything else keeps the runtime's own default.
"""

from __future__ import annotations

from typing import Any

import yaml

from embedserve_operator.api.cache import OnnxConversion
from embedserve_operator.api.sources import ModelSource
from embedserve_operator.api.types import Batching, EmbeddingServiceSpec
from embedserve_operator.hardware import HardwareClass
from embedserve_operator.settings import RenderSettings
from embedserve_operator.specs.placement import accelerators
from embedserve_operator.world import Resource

SERVING_PORT = 8080
MANAGEMENT_PORT = 8081
PINNED_PORT = 8082
"""For what comes by a vector space's own name."""
GRPC_PORT = 8083
PINNED_GRPC_PORT = 8084
STORE_PATH = "/models"
VOLUME_PATH = "/volume"
ENDPOINT_DRAIN_SECONDS = 5
"""After the stop signal: normal service while load balancers move away."""
_LEAST_GRACE_SECONDS = 30
_MOST_GRACE_SECONDS = 300


def grace_seconds(spec: EmbeddingServiceSpec) -> int:
    """After the drain: time that accepted requests have to finish. As long as a request may take, within bounds."""
    asked = spec.batching.request_timeout_seconds if spec.batching is not None else None
    return max(_LEAST_GRACE_SECONDS, min(asked or 0, _MOST_GRACE_SECONDS))


def source_path(source: ModelSource) -> str:
    """The source as the runtime reads it: OWNER/NAME, a URL or a folder."""
    if source.is_remote:
        return source_words(source)
    folder = source.volume or source.image
    path = folder.path.strip("/") if folder is not None else ""
    return f"{VOLUME_PATH}/{path}" if path else VOLUME_PATH


def source_words(source: ModelSource) -> str:
    """The source as people read it."""
    if source.hugging_face is not None:
        return source.hugging_face.repo
    if source.http is not None:
        return source.http.url
    if source.s3 is not None:
        return source.s3.uri
    if source.volume is not None:
        return f"{source.volume.claim_name}:/{source.volume.path.strip('/')}"
    if source.image is not None:
        return f"{source.image.reference}:/{source.image.path.strip('/')}"
    raise ValueError("a source without a kind")


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None and value != {}}


def _model(spec: EmbeddingServiceSpec, settings: RenderSettings) -> dict[str, Any]:
    source = spec.model.source
    hub = source.hugging_face
    return _given(
        {
            "source": source_path(source),
            "revision": hub.revision if hub is not None else None,
            "refresh": spec.model.refresh,
            "sha256": source.http.sha256 if source.http is not None else None,
            "s3_endpoint": source.s3.endpoint if source.s3 is not None else None,
            "store": STORE_PATH,
            "endpoint": (hub.endpoint or settings.hf_endpoint) if hub is not None else None,
            "onnx_file": spec.model.onnx_file,
            "task": spec.model.task if spec.model.task != "auto" else None,
            "outputs": list(spec.model.outputs) or None,
            "pooling": spec.model.pooling,
            "max_length": spec.model.max_length,
            "dimensions": spec.model.dimensions,
            "prompts": spec.prompts,
            "default_prompt": spec.prompt_name,
        }
    )


def _batching(batching: Batching | None) -> dict[str, Any]:
    if batching is None:
        return {}
    return _given(
        {
            "max_batch_tokens": batching.max_batch_tokens,
            "max_queue_tokens": batching.max_queue_tokens,
            "max_queue_inputs": batching.max_queue_inputs,
            "max_client_batch_size": batching.max_client_batch_size,
            "request_timeout_seconds": batching.request_timeout_seconds,
            "auto_truncate": batching.auto_truncate,
        }
    )


def _engine(spec: EmbeddingServiceSpec, hardware: HardwareClass) -> dict[str, Any]:
    """What the user says, else what the class says; nothing where both leave it to the runtime."""
    kind = spec.engine if spec.engine != "auto" else hardware.engine
    precision = spec.model.precision if spec.model.precision != "auto" else hardware.precision
    return {key: value for key, value in (("kind", kind), ("precision", precision)) if value != "auto"}


def _onnx(wanted: OnnxConversion | None) -> dict[str, Any]:
    """Without a wish nothing is converted, and what others have converted on the same volume is not taken."""
    if wanted is None:
        return {"convert": "Never"}
    floors = wanted.parity
    parity = (
        {}
        if floors is None
        else {
            "min_mean_cosine": floors.min_mean_cosine,
            "min_cosine": floors.min_cosine,
            "min_rank_agreement": floors.min_rank_agreement,
        }
    )
    return _given(
        {
            "convert": wanted.convert,
            "precision": None if wanted.precision == "auto" else [wanted.precision],
            "outputs": None if wanted.outputs is None else list(wanted.outputs),
            "parity": _given(parity),
        }
    )


def _yaml(config: dict[str, Any]) -> str:
    return yaml.safe_dump(_given(config), sort_keys=False, width=110, allow_unicode=True)


def fetch_yaml(spec: EmbeddingServiceSpec, settings: RenderSettings, *, converts: bool) -> str:
    """Content of the configuration file of a fetch Job, which says on the management port how far it is. converts: a
    conversion follows, by an image that can export what this one cannot."""
    server = {"host": "0.0.0.0", "management_port": MANAGEMENT_PORT}
    exported = {"export_elsewhere": True} if converts else {}
    return _yaml({"model": {**_model(spec, settings), **exported}, "server": server})


def convert_yaml(spec: EmbeddingServiceSpec, settings: RenderSettings) -> str:
    """Content of the configuration file of a conversion Job: the model is in the volume."""
    return _yaml(
        {
            "model": {**_model(spec, settings), "offline": True},
            "engine": _engine(spec, settings.classes[spec.hardware.class_]),
            "onnx": _onnx(spec.onnx),
        }
    )


def runtime_yaml(resource: Resource, spec: EmbeddingServiceSpec, settings: RenderSettings) -> str:
    """Content of the configuration file of the pods. With a cache they take models from it and from nowhere else."""
    cached = spec.cache is not None
    space_name = f"{resource.key.name}-{{space8}}.{resource.key.namespace}.svc"
    grpc = spec.service.grpc_port
    server = _given(
        {
            "host": "0.0.0.0",
            "port": SERVING_PORT,
            "management_port": MANAGEMENT_PORT,
            "grpc_port": GRPC_PORT if grpc is not None else None,
            "pinned_grpc_port": PINNED_GRPC_PORT if grpc is not None else None,
            "space_grpc": f"{space_name}:{grpc}" if grpc is not None else None,
            "pinned_port": PINNED_PORT,
            # One process does not keep an accelerator busy with short texts.
            "http_workers": "auto" if accelerators(spec, settings) is not None else None,
            "space_url": f"http://{space_name}",
            "served_model_name": spec.served_model_name or source_words(spec.model.source),
            "endpoint_drain_seconds": ENDPOINT_DRAIN_SECONDS,
            "shutdown_grace_seconds": grace_seconds(spec),
        }
    )
    return _yaml(
        {
            "model": {**_model(spec, settings), **({"offline": True} if cached else {})},
            "server": server,
            "batching": _batching(spec.batching),
            "engine": _engine(spec, settings.classes[spec.hardware.class_]),
            "onnx": _onnx(spec.onnx) if cached or spec.onnx is not None else {},
        }
    )
