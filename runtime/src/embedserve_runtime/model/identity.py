"""The vector-space identity: vectors may be compared only when it is equal (design: "The vector-space identity").

`vs1-` and the first 20 hex digits of SHA-256 over canonical JSON (sorted keys, no spaces, UTF-8) of the digests of
the weights under our own parameter names, the digest of the tokenizer, and what the pipeline does. Precision,
engine, batching and hardware are not in it. Two spellings of one configuration give one identity: tensor names are
mapped first, and the tokenizer is hashed without its truncation and padding settings, which we set ourselves.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embedserve_runtime.model.files import read_json
from embedserve_runtime.model.pipeline import Pipeline


def tensor_digest(tensor: NDArray[np.generic]) -> str:
    """SHA-256 over dtype, shape and little-endian bytes."""
    digest = hashlib.sha256(f"{tensor.dtype.name}:{','.join(map(str, tensor.shape))}:".encode())
    digest.update(np.ascontiguousarray(tensor).view(np.uint8).reshape(-1).data)
    return digest.hexdigest()


def tokenizer_digest(tokenizer_file: Path) -> str:
    """SHA-256 over the canonical JSON of tokenizer.json without `truncation` and `padding`."""
    content = read_json(tokenizer_file, dict[str, object])
    return hashlib.sha256(
        _canonical({key: value for key, value in content.items() if key not in ("truncation", "padding")})
    ).hexdigest()


def vector_space(
    *,
    tensors: Iterable[tuple[str, NDArray[np.generic]]],
    dense: Iterable[tuple[str, NDArray[np.generic]]],
    tokenizer: str,
    pipeline: Pipeline,
    lowercase: bool,
    prompt: str,
    head: Mapping[str, object] | None = None,
    head_tensors: Iterable[tuple[str, NDArray[np.generic]]] = (),
    token_heads: Sequence[tuple[Mapping[str, object], Iterable[tuple[str, NDArray[np.generic]]]]] = (),
) -> str:
    """The identity. `prompt` is the text of the default prompt, empty without one; `tokenizer` its digest; `head` what
    stands in the place of pooling where the rows are not dense vectors; `token_heads` what stands beside it, each with
    its tensors."""
    description: dict[str, object] = {
        "weights": {name: tensor_digest(tensor) for name, tensor in tensors},
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
        "dense_weights": {name: tensor_digest(tensor) for name, tensor in dense},
        "tokenizer": tokenizer,
        "lowercase": lowercase,
        "pooling": pipeline.pooling_name,
        "normalize": pipeline.normalize,
        "dimensions": pipeline.dimensions,
        "prompt": prompt,
    }
    if not pipeline.include_prompt:  # left out where it is as usual: older identities stay
        description["include_prompt"] = False
    if head is not None:
        description["head"] = head
        description["head_weights"] = {name: tensor_digest(tensor) for name, tensor in head_tensors}
    if token_heads:
        description["token_heads"] = [
            {**one, "weights": {name: tensor_digest(tensor) for name, tensor in of_one}}
            for one, of_one in token_heads
        ]
    return _identity(description)


def joined(documents: str, queries: str) -> str:
    """Return the identity of a model that encodes queries and documents by different routes, from theirs."""
    return _identity({"documents": documents, "queries": queries})


def _identity(description: Mapping[str, object]) -> str:
    return f"vs1-{hashlib.sha256(_canonical(description)).hexdigest()[:20]}"


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
