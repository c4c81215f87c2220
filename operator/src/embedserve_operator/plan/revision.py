"""This module computes the revision: a short hash of everything in the spec that declares the model and its
vectors.

Two specs with the same revision make vectors that may be compared. Replicas, resources, batching, the
length limit, the served name and the token change pods inside one Deployment; another revision gets a
Deployment of its own.
"""

from __future__ import annotations

from typing import Any

from embedserve_operator.api.sources import ModelSource
from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.kube.objects import short_hash


def compute_revision(spec: EmbeddingServiceSpec) -> str:
    """Return the revision that a spec declares."""
    return short_hash(collect_revision_inputs(spec))


def collect_revision_inputs(spec: EmbeddingServiceSpec) -> dict[str, Any]:
    """Return the values that the revision is the hash of."""
    return {
        "source": _collect_source(spec.model.source),
        # Defaults are left out, so that revisions from before these fields existed do not change.
        **({} if spec.model.refresh is None else {"refresh": spec.model.refresh}),
        **({} if spec.model.onnx_file is None else {"onnxFile": spec.model.onnx_file}),
        **({} if spec.model.task == "auto" else {"task": spec.model.task}),
        "pooling": spec.model.pooling,
        "dimensions": spec.model.dimensions,
        # Only the default prompt shapes the vectors of a plain request; other prompts are asked for by name.
        "prompt": [spec.prompt_name, (spec.prompts or {}).get(spec.prompt_name or "")],
    }


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
