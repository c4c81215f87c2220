"""The vector-space identity: vectors may be compared only when it is equal (design: "The vector-space identity").

`vs1-` and the first 20 hex digits of SHA-256 over canonical JSON (sorted keys, no spaces, UTF-8) of the digests of
the weights under our own parameter names, the digest of the tokenizer, and what the pipeline does. Precision,
engine, batching and hardware are not in it. Two spellings of one configuration give one identity: tensor names are
mapped first, and the tokenizer is hashed without its truncation and padding settings, which we set ourselves.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.files import ModelFile
from embedserve_runtime.model.heads.description import describe_identity


@dataclass(frozen=True, slots=True)
class TensorDigests:
    """Digests of the tensors of a model, by their names.

    encoder: or of the table that stands in its place; empty for an ONNX file, whose digest is in the card.
    dense: of the pipeline's layers. token_heads: in the order of those of the card.
    """

    encoder: Mapping[str, str]
    dense: Mapping[str, str]
    head: Mapping[str, str]
    token_heads: tuple[Mapping[str, str], ...]


def digest_tensor(tensor: NDArray[np.generic]) -> str:
    """SHA-256 over dtype, shape and little-endian bytes."""
    digest = hashlib.sha256(f"{tensor.dtype.name}:{','.join(map(str, tensor.shape))}:".encode())
    digest.update(np.ascontiguousarray(tensor).view(np.uint8).reshape(-1).data)
    return digest.hexdigest()


def digest_tokenizer(file: ModelFile) -> str:
    """SHA-256 over the canonical JSON of tokenizer.json without `truncation` and `padding`."""
    content = file.parse(dict[str, object])
    return hashlib.sha256(
        _encode_canonical(
            {key: value for key, value in content.items() if key not in ("truncation", "padding")}
        )
    ).hexdigest()


def compute_vector_space(card: ModelCard, digests: TensorDigests) -> str:
    """The identity of the vectors that inputs get by this card alone, without that of a route for queries."""
    pipeline = card.pipeline
    description: dict[str, object] = {
        "weights": digests.encoder,
        "dense": [
            {
                "activation": layer.activation,
                "bias": layer.bias,
                "in": layer.in_features,
                "out": layer.out_features,
                **({"residual": True} if layer.residual else {}),  # left out where it is as usual, as below
            }
            for layer in pipeline.dense
        ],
        "dense_weights": digests.dense,
        "tokenizer": card.tokenizer.digest,
        "lowercase": card.tokenizer.lowercase,
        "pooling": pipeline.pooling_name,
        "normalize": pipeline.normalize,
        "dimensions": pipeline.dimensions,
        "prompt": card.default_prompt_text,
    }
    if not pipeline.include_prompt:  # left out where it is as usual: older identities stay
        description["include_prompt"] = False
    if card.body is not None:  # it stands in the place of all heads
        return _hash_description({**description, "head": card.body.identity, "head_weights": {}})
    if card.head is not None:
        description["head"] = describe_identity(card.head)
        description["head_weights"] = digests.head
    if card.token_heads:
        description["token_heads"] = [
            {**describe_identity(head), "weights": of_head}
            for head, of_head in zip(card.token_heads, digests.token_heads, strict=True)
        ]
    return _hash_description(description)


def join_vector_spaces(documents: str, queries: str) -> str:
    """Return the identity of a model that encodes queries and documents by different routes, from theirs."""
    return _hash_description({"documents": documents, "queries": queries})


def _hash_description(description: Mapping[str, object]) -> str:
    return f"vs1-{hashlib.sha256(_encode_canonical(description)).hexdigest()[:20]}"


def _encode_canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
