"""The revision: a short hash of everything in the spec that declares the model and its vectors.

Two specs with one revision make vectors that may be compared; replicas, resources, batching, the length
limit, the served name or the token change pods inside one Deployment. Another revision gets a Deployment of
its own.
"""

from __future__ import annotations

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.wire import short_hash


def revision_of(spec: EmbeddingServiceSpec) -> str:
    """The revision that a spec declares."""
    source = spec.model.source
    if source.hugging_face is not None:
        declared = ["huggingFace", source.hugging_face.repo, source.hugging_face.revision]
    elif source.volume is not None:
        declared = ["volume", source.volume.claim_name, source.volume.path.strip("/")]
    else:
        raise ValueError("a source without a kind")
    return short_hash(
        {
            "source": declared,
            "pooling": spec.model.pooling,
            "dimensions": spec.model.dimensions,
            # Only the default prompt shapes the vectors of a plain request; other prompts are asked for by
            # name.
            "prompt": [spec.prompt_name, (spec.prompts or {}).get(spec.prompt_name or "")],
        }
    )
