"""Digests of the tensors that a card names, for the vector-space identity."""

from __future__ import annotations

from collections.abc import Iterable

from embedserve_runtime.model.adapted_tensors import open_adapted_tensors
from embedserve_runtime.model.bundled_onnx import BundledOnnx
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.checkpoint import Weights
from embedserve_runtime.model.heads.tensors import head_tensors
from embedserve_runtime.model.identity import TensorDigests, digest_tensor
from embedserve_runtime.model.static import StaticTable, table_tensors
from embedserve_runtime.model.tensors import ModelTensors, NamedTensor, dense_tensors
from embedserve_runtime.model.words import TENSOR, WordTable, token_weights


def digest_tensors(card: ModelCard, tensors: ModelTensors, *, with_encoder: bool = True) -> TensorDigests:
    """Read every tensor of the card once. with_encoder: whether those of the encoder are digested too.

    Raises ModelFileMissing or ModelInvalid.
    """
    dense = _digests(dense_tensors(tensors, card.pipeline.dense))
    match card.body:
        case BundledOnnx():
            return TensorDigests({}, dense, {}, ())
        case StaticTable() as table:
            own = table_tensors(tensors.checkpoint(card.encoder_path), table.tensor)
            return TensorDigests(_digests(own.items()), dense, {}, ())
        case WordTable():
            row = token_weights(tensors, card.encoder_path)
            return TensorDigests(_digests([(TENSOR, row)]), dense, {}, ())
    adapted = open_adapted_tensors(card, tensors)
    # What a merged tensor is, its last bits, depends on the machine; so the parts are digested.
    checkpoint = tensors.checkpoint(card.encoder_path) if adapted is None else adapted.unmerged
    weights = Weights(card.encoder, checkpoint)
    return TensorDigests(
        encoder=_digests(weights.raw_tensors() if with_encoder else ()),
        dense=dense,
        head=_digests(() if card.head is None else head_tensors(tensors, checkpoint, card.head.layers)),
        token_heads=tuple(
            _digests(head_tensors(tensors, checkpoint, head.layers)) for head in card.token_heads
        ),
        adapter=_digests(() if adapted is None else adapted.factors()),
    )


def _digests(tensors: Iterable[NamedTensor]) -> dict[str, str]:
    return {name: digest_tensor(tensor) for name, tensor in tensors}
