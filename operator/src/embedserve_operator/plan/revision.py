"""Computes the revision: a short hash of everything in the spec that declares the model and its
vectors.

Two specs with the same revision make vectors that may be compared. Replicas, resources, batching, the
length limit, the served name and the token change pods inside one Deployment; another revision gets a
Deployment of its own. What computes the vectors is part of it where `spec.rollout.onPrecisionChange` says so.
"""

from __future__ import annotations

from typing import Any

from embedserve_operator.api.sources import ModelSource
from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.kube.objects import compute_short_hash


def compute_revision(spec: EmbeddingServiceSpec) -> str:
    """Return the revision that a spec declares."""
    return compute_short_hash(collect_revision_inputs(spec))


def collect_revision_inputs(spec: EmbeddingServiceSpec) -> dict[str, Any]:
    """Return the values that the revision is the hash of."""
    inputs = collect_model_inputs(spec)
    if spec.rollout.on_precision_change == "Rolling":
        return inputs
    conversion = {} if spec.onnx is None else spec.onnx.as_wire()
    return {
        **inputs,
        "compute": [spec.model.precision, spec.engine, spec.hardware.class_],
        **({} if spec.model.min_cosine is None else {"minCosine": spec.model.min_cosine}),
        # Files for other programs change nothing that is served.
        "conversion": [f"{key}={conversion[key]}" for key in sorted(conversion) if key != "outputs"],
    }


def collect_model_inputs(spec: EmbeddingServiceSpec) -> dict[str, Any]:
    """Return the values that declare the model and its vectors, whatever computes them."""
    return {
        "source": _collect_source(spec.model.source),
        # Defaults are left out, so that revisions from before these fields existed do not change.
        **({} if spec.model.refresh is None else {"refresh": spec.model.refresh}),
        **({} if spec.model.onnx_file is None else {"onnxFile": spec.model.onnx_file}),
        **({} if spec.model.task == "auto" else {"task": spec.model.task}),
        **({} if not spec.model.adapters else {"adapters": list(spec.model.adapters)}),
        "pooling": spec.model.pooling,
        "dimensions": spec.model.dimensions,
        "prompt": [spec.prompt_name, (spec.prompts or {}).get(spec.prompt_name or "")],
        # One of these may stand instead of a prompt of the model, which its vector space covers.
        **({"prompts": other_prompts} if (other_prompts := _collect_other_prompts(spec)) else {}),
    }


def _collect_other_prompts(spec: EmbeddingServiceSpec) -> list[str]:
    """Return the prompts of the service but for the default one, as `name=text`."""
    prompts = spec.prompts or {}
    return [f"{name}={prompts[name]}" for name in sorted(prompts) if name != spec.prompt_name]


def _collect_source(source: ModelSource) -> list[str]:
    if source.hugging_face is not None:
        hub = source.hugging_face
        return ["huggingFace", hub.repo, hub.revision, *([] if hub.endpoint is None else [hub.endpoint])]
    if source.http is not None:
        return ["http", source.http.url, source.http.sha256]
    if source.s3 is not None:
        return ["s3", source.s3.uri, *([] if source.s3.endpoint is None else [source.s3.endpoint])]
    if source.volume is not None:
        return ["volume", source.volume.claim_name, source.volume.path.strip("/")]
    if source.image is not None:
        return ["image", source.image.reference, source.image.path.strip("/")]
    raise ValueError("a source without a kind")
