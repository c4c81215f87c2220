"""A table with a weight for each token: sparse vectors without an encoder (SPLADE without inference).

Source: SparseStaticEmbedding of sentence-transformers 6.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from embedserve_runtime.engines.base import FloatArray
from embedserve_runtime.errors import ModelInvalid, UnsupportedArchitecture
from embedserve_runtime.model.architecture import Encoder
from embedserve_runtime.model.checkpoint import SINGLE_FILE, Checkpoint
from embedserve_runtime.model.files import FileModel, read_json_if_there
from embedserve_runtime.model.modules import tokenizer_length
from embedserve_runtime.model.static import DEFAULT_MAX_LENGTH, tokenizer_beside, without_layers

TENSOR = "weight"


class _File(FileModel):
    path: str | None = None


@dataclass(frozen=True, slots=True)
class WordTable:
    """Where the table is, and how it is read: no special tokens, at most `max_length` of the others.

    folder: of tokenizer and weights. vocabulary: token ids from 0 on, which are also the columns.
    """

    folder: Path
    vocabulary: int
    max_length: int

    @property
    def encoder(self) -> Encoder:
        """The sizes, as an encoder without layers."""
        return without_layers("sparse-static-embedding", self.vocabulary, self.vocabulary, self.max_length)

    def tensors(self) -> Mapping[str, FloatArray]:
        """`weight`, float32 (vocabulary,), none below 0. Raises ModelInvalid."""
        return {TENSOR: _weights(self.folder)}

    @property
    def identity(self) -> dict[str, object]:
        """What of the rules decides the vectors, besides tensors and tokenizer."""
        return {"kind": "word weights"}


def read_words(home: Path) -> WordTable:
    """The table of a SparseStaticEmbedding module. Raises ModelInvalid, ModelFileMissing or UnsupportedArchitecture."""
    config = home / "config.json"
    if read_json_if_there(config, _File, _File()).path is not None:
        raise UnsupportedArchitecture(
            f"{config}: path (weights in a JSON file) is not supported; load and save the model with a current "
            "sentence-transformers"
        )
    vocabulary, tokens = len(_weights(home)), tokenizer_beside(home).get_vocab()
    if (last := max(tokens.values(), default=0)) >= vocabulary:
        raise ModelInvalid(
            f"{home / SINGLE_FILE} has weights of {vocabulary} tokens, tokenizer.json gives ids up to {last}"
        )
    return WordTable(home, vocabulary, tokenizer_length(home) or DEFAULT_MAX_LENGTH)


def _weights(home: Path) -> FloatArray:
    checkpoint, path = Checkpoint.open(home), home / SINGLE_FILE
    if TENSOR not in checkpoint.names:
        raise ModelInvalid(f"{path} lacks the tensor {TENSOR}")
    weights = checkpoint.float32(TENSOR)
    if weights.ndim != 1 or not (weights >= 0).all():
        raise ModelInvalid(
            f"{path}: {TENSOR} must be one row of numbers of at least 0, is of shape {list(weights.shape)} and begins "
            f"at {weights.min(initial=np.inf)}"
        )
    return weights
