"""Digests of the tensors that a card names, for the vector-space identity."""

from __future__ import annotations

from collections.abc import Iterable

from embedserve_runtime.model.adapted_tensors import open_adapted_tensors
from embedserve_runtime.model.bundled_onnx import BundledOnnx
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.checkpoint import Checkpoint, Weights
from embedserve_runtime.model.heads.tensors import read_head_tensors
from embedserve_runtime.model.identity import TensorDigests, digest_blocks, digest_tensor
from embedserve_runtime.model.sparse_static import TENSOR, SparseStaticTable, read_token_weights
from embedserve_runtime.model.static import StaticTable, name_table_tensors
from embedserve_runtime.model.tensors import ModelTensors, NamedTensor, read_dense_tensors
from embedserve_runtime.progress import track_work


def digest_tensors(card: ModelCard, tensors: ModelTensors, *, with_encoder: bool = True) -> TensorDigests:
    """Read every tensor of the card once. with_encoder: whether those of the encoder are digested too.

    Raises ModelFileMissing or ModelInvalid.
    """
    dense = _digest_all(read_dense_tensors(tensors, card.pipeline.dense))
    match card.backbone:
        case BundledOnnx():
            return TensorDigests({}, dense, {}, ())
        case StaticTable() as table:
            return TensorDigests(
                _digest_table(tensors.open_checkpoint(card.encoder_path), table.tensor), dense, {}, ()
            )
        case SparseStaticTable():
            row = read_token_weights(tensors, card.encoder_path)
            return TensorDigests(_digest_all([(TENSOR, row)]), dense, {}, ())
    adapted = open_adapted_tensors(card, tensors)
    # What a merged tensor is, its last bits, depends on the machine; so the parts are digested.
    checkpoint = tensors.open_checkpoint(card.encoder_path) if adapted is None else adapted.unmerged
    weights = Weights(card.encoder, checkpoint)
    with track_work("hashing weights", weights.size, "parameters") as advance:
        encoder = _digest_encoder(weights.with_observer(advance)) if with_encoder else {}
    return TensorDigests(
        encoder=encoder,
        dense=dense,
        head=_digest_all(
            () if card.head is None else read_head_tensors(tensors, checkpoint, card.head.layers)
        ),
        token_heads=tuple(
            _digest_all(read_head_tensors(tensors, checkpoint, head.layers)) for head in card.token_heads
        ),
        adapter=_digest_all(() if adapted is None else adapted.iterate_factors()),
    )


def _digest_encoder(weights: Weights) -> dict[str, str]:
    return {name: digest_blocks(weights.read_blocks(name), weights.shape(name)) for name in weights.names}


def _digest_table(checkpoint: Checkpoint, table: str) -> dict[str, str]:
    names = name_table_tensors(checkpoint, table)
    return {
        part: digest_blocks(checkpoint.read_blocks(name), checkpoint.shape(name))
        for part, name in names.items()
    }


def _digest_all(tensors: Iterable[NamedTensor]) -> dict[str, str]:
    return {name: digest_tensor(tensor) for name, tensor in tensors}
