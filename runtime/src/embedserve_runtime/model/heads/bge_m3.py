"""BGE-M3: besides the dense vector, a weight for each token and a vector for each token, from two linear layers.

Source: the M3 embedder of FlagEmbedding 1.4.2, whose files these are. Of the token weights those of four special tokens
are dropped; a token vector is made of every token but the first.
"""

from __future__ import annotations

from embedserve_runtime.errors import ModelInvalid
from embedserve_runtime.model.architecture import Encoder
from embedserve_runtime.model.files import ModelFiles
from embedserve_runtime.model.heads.description import HeadLayer, LexicalHead, MultiVectorHead, TokenHead
from embedserve_runtime.model.tensors import ModelTensors
from embedserve_runtime.model.vocabulary import read_unused_token_ids

SPARSE_FILE = "sparse_linear.pt"
COLBERT_FILE = "colbert_linear.pt"
FILES = (SPARSE_FILE, COLBERT_FILE)


def is_bge_m3(files: ModelFiles) -> bool:
    return any(name in files for name in FILES)


def describe_token_heads(files: ModelFiles, tensors: ModelTensors, encoder: Encoder) -> tuple[TokenHead, ...]:
    """Describe the heads whose files are there. Raises ModelError, naming the file."""
    heads: list[TokenHead] = []
    if SPARSE_FILE in files:
        layer = _describe_layer(files, tensors, SPARSE_FILE, encoder)
        if layer.out_features != 1:
            raise ModelInvalid(
                f"{files.path / SPARSE_FILE}: gives {layer.out_features} weights a token, expected 1"
            )
        heads.append(LexicalHead((layer,), read_unused_token_ids(files), encoder.embeddings.vocabulary))
    if COLBERT_FILE in files:
        heads.append(
            MultiVectorHead(
                (_describe_layer(files, tensors, COLBERT_FILE, encoder),), normalize=True, skipped=1
            )
        )
    return tuple(heads)


def _describe_layer(files: ModelFiles, tensors: ModelTensors, name: str, encoder: Encoder) -> HeadLayer:
    """Describe a layer; the file alone says how many features come out."""
    path, own = files.path / name, tensors.open(name)
    if own.names != {"weight", "bias"}:
        raise ModelInvalid(
            f"{path}: has {', '.join(sorted(own.names)) or 'no tensors'}, expected weight and bias"
        )
    shape = own.read_tensor("weight").shape
    if len(shape) != 2 or shape[1] != encoder.width:
        raise ModelInvalid(
            f"{path}: weight has shape {list(shape)}, the encoder gives {encoder.width} features"
        )
    return HeadLayer(shape[1], shape[0], ("weight",), ("bias",), file=name)
