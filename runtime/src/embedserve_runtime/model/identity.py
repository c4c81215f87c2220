"""The vector-space identity: vectors may be compared only when it is equal.

`vs2-` and the first 20 hex digits of SHA-256 over the canonical JSON of a model's card and of the digests of its
tensors under our own parameter names. What of a card is in it, each of its fields says itself (`canonical`). Precision,
engine, batching and hardware are not on the card. Two spellings of one configuration give one identity: tensor names
are mapped first, and the tokenizer is hashed without its truncation and padding settings, which we set ourselves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from embedserve_runtime.model.canonical import hash_canonically, hash_json
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.files import ModelFile

VERSION = "vs2"


@dataclass(frozen=True, slots=True)
class TensorDigests:
    """Digests of the tensors of a model, by their names.

    encoder: or of the table that is used instead of one; empty for an ONNX file, whose digest is in the card.
    dense: of the pipeline's layers. token_heads: in the order of those of the card.
    adapter: of the factors of a LoRA adapter; what it replaces is digested instead of the original.
    """

    encoder: Mapping[str, str]
    dense: Mapping[str, str]
    head: Mapping[str, str]
    token_heads: tuple[Mapping[str, str], ...]
    adapter: Mapping[str, str] = field(default_factory=dict)


def digest_tensor(tensor: NDArray[np.generic]) -> str:
    """Return SHA-256 over dtype, shape and little-endian bytes, in hex digits."""
    return digest_blocks([tensor], tensor.shape)


def digest_blocks(blocks: Iterable[NDArray[np.generic]], shape: Sequence[int]) -> str:
    """Return the digest of a tensor of that shape whose rows come in blocks, one after another; at least one."""
    digest = hashlib.sha256()
    for number, block in enumerate(blocks):
        if number == 0:
            digest.update(f"{block.dtype.name}:{','.join(map(str, shape))}:".encode())
        digest.update(np.ascontiguousarray(block).view(np.uint8).reshape(-1).data)
    return digest.hexdigest()


def digest_tokenizer(file: ModelFile) -> str:
    """Return SHA-256 over the canonical JSON of tokenizer.json without `truncation` and `padding`, in hex digits."""
    content = file.parse(dict[str, object])
    hashed = {key: value for key, value in content.items() if key not in ("truncation", "padding")}
    return hash_json(hashed)


def identify_vector_space(
    card: ModelCard, documents: TensorDigests, queries: TensorDigests | None = None
) -> str:
    """Return the identity of the vectors of a model.

    documents: digests of the card's tensors. queries: those of its route for queries; None where it has none.
    """
    content = {"card": _select_prompts(card), "documents": documents, "queries": queries}
    return f"{VERSION}-{hash_canonically(content)[:20]}"


def _select_prompts(card: ModelCard) -> ModelCard:
    """Return the card with the prompts that belong to the space: the model's own and the default one.

    A prompt that a service adds under a new name changes no vector that could be asked for before. Where all are empty
    there is none: sentence-transformers writes empty ones into every folder.
    """
    added = set(card.added_prompts) - {card.default_prompt}
    prompts = {name: text for name, text in card.prompts.items() if name not in added}
    if any(prompts.values()):
        return replace(card, prompts=MappingProxyType(prompts))
    return replace(card, prompts=MappingProxyType({}), default_prompt=None)
