"""Reads a table with a weight for each token: sparse vectors without an encoder (SPLADE without inference).

Source: SparseStaticEmbedding of sentence-transformers 6.2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from embedserve_runtime.errors import ModelInvalid, UnsupportedArchitecture
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.model.architecture import Encoder
from embedserve_runtime.model.checkpoint import SINGLE_FILE
from embedserve_runtime.model.files import ModelFiles
from embedserve_runtime.model.hf_files.sentence_transformers import SparseStaticEmbeddingConfig
from embedserve_runtime.model.hf_files.transformers import CONFIG_FILE
from embedserve_runtime.model.modules import read_tokenizer_length
from embedserve_runtime.model.static import DEFAULT_MAX_LENGTH, describe_table_encoder, load_tokenizer
from embedserve_runtime.model.tensors import ModelTensors

TENSOR = "weight"


@dataclass(frozen=True, slots=True)
class SparseStaticTable:
    """A table of token weights, which is read without special tokens, at most `max_length` of the others.

    vocabulary: token ids from 0 on, which are also the columns.
    """

    vocabulary: int
    max_length: int

    @property
    def encoder(self) -> Encoder:
        """The sizes, as an encoder without layers."""
        return describe_table_encoder(
            "sparse-static-embedding", self.vocabulary, self.vocabulary, self.max_length
        )


def read_sparse_static_table(files: ModelFiles, tensors: ModelTensors, module: str) -> SparseStaticTable:
    """Read the table of a SparseStaticEmbedding module, by its folder.

    Raises ModelInvalid, ModelFileMissing or UnsupportedArchitecture.
    """
    module_files = files.enter_folder(module)
    config = module_files.parse_if_there(
        CONFIG_FILE, SparseStaticEmbeddingConfig, SparseStaticEmbeddingConfig()
    )
    if config.path is not None:
        raise UnsupportedArchitecture(
            f"{module_files.path / CONFIG_FILE}: path (weights in a JSON file) is not supported; "
            "load and save the model with a current sentence-transformers"
        )
    vocabulary, tokens = len(read_token_weights(tensors, module)), load_tokenizer(module_files).get_vocab()
    if (last := max(tokens.values(), default=0)) >= vocabulary:
        raise ModelInvalid(
            f"{module_files.path / SINGLE_FILE} has weights of {vocabulary} tokens, "
            f"tokenizer.json gives ids up to {last}"
        )
    return SparseStaticTable(vocabulary, read_tokenizer_length(module_files) or DEFAULT_MAX_LENGTH)


def read_token_weights(tensors: ModelTensors, module: str) -> FloatArray:
    """Read the weights, float32 (vocabulary,), none below 0. Raises ModelFileMissing or ModelInvalid."""
    checkpoint, path = tensors.open_checkpoint(module), tensors.root / module / SINGLE_FILE
    if TENSOR not in checkpoint.names:
        raise ModelInvalid(f"{path} lacks the tensor {TENSOR}")
    weights = checkpoint.read_float32(TENSOR)
    if weights.ndim != 1 or not (weights >= 0).all():
        raise ModelInvalid(
            f"{path}: {TENSOR} must be one row of numbers of at least 0, is of shape {list(weights.shape)} and begins "
            f"at {weights.min(initial=np.inf)}"
        )
    return weights
