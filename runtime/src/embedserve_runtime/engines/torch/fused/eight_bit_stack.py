"""Builds a whole encoder in 8 bit: embeddings, layers, the last layer with its result in 16 bit; and calibrates it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from embedserve_runtime.engines.torch.activation_ranges import LayerRanges, observe_ranges
from embedserve_runtime.engines.torch.device_batch import DeviceBatch, copy_to_device
from embedserve_runtime.engines.torch.fused.eight_bit_layers import EightBitPreNorms, Hidden8, Layer8
from embedserve_runtime.engines.torch.fused.eight_bit_parts import LayerInput, LayerParts8, ValueCentering
from embedserve_runtime.engines.torch.fused.eight_bit_rows import QuantizedRows, normalize_to_eight_bit
from embedserve_runtime.engines.torch.fused.layer import FusedLayer, HiddenStates, LayerStack
from embedserve_runtime.engines.torch.fused.operations import add_and_normalize, embed_batch
from embedserve_runtime.engines.torch.fused.self_attention import SharedTables
from embedserve_runtime.engines.torch.fused.smoothing import SmoothedNorm
from embedserve_runtime.engines.torch.fused.support import EightBit
from embedserve_runtime.engines.torch.parameters import Normalization
from embedserve_runtime.engines.torch.tables import EmbeddingTables
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.model.architecture import Encoder, NormPlacement

# Of the batch that shows the means of values: a length that attention usually sees.
SAMPLE_LENGTH, SAMPLE_TOKENS = 128, 1024

Embed8 = Callable[[DeviceBatch], Hidden8]


def embed_for_post_norms(
    tables: EmbeddingTables, norm: SmoothedNorm | None, kind: EightBit, batch: DeviceBatch
) -> Hidden8:
    """Embed a batch for layers with norms after the branches. norm: of the embeddings, which is deferred."""
    sums = embed_batch(tables, batch, tables.word_embeddings.dtype)
    if norm is None:
        return HiddenStates(QuantizedRows.quantize(sums, kind), sums)
    return HiddenStates(*normalize_to_eight_bit(sums, norm, kind))


def embed_for_pre_norms(
    tables: EmbeddingTables, norm: SmoothedNorm | None, kind: EightBit, batch: DeviceBatch
) -> Hidden8:
    """Embed a batch, in float32, for layers with norms before the branches. norm: the first of the first layer."""
    hidden = embed_batch(tables, batch, torch.float32)
    dtype = tables.word_embeddings.dtype
    rows = hidden if norm is None else add_and_normalize(hidden, norm.rows, dtype=dtype)
    return HiddenStates(QuantizedRows.quantize(rows, kind), hidden)


@dataclass(frozen=True, slots=True, eq=False)
class LastLayer:
    """The last layer, whose result is not in 8 bit, and the final norm.

    post_norm: the norm after the MLP; None where norms come before the branches. dtype: of the result.
    """

    layer: Layer8
    post_norm: Normalization | None
    final_norm: Normalization | None
    dtype: torch.dtype

    def __call__(self, hidden: Hidden8, batch: DeviceBatch) -> Tensor:
        branch, hidden = self.layer.run_branches(hidden, batch)
        last = self._end_layer(branch, hidden)
        return (
            last.to(self.dtype)
            if self.final_norm is None
            else add_and_normalize(last, self.final_norm, dtype=self.dtype)
        )

    def _end_layer(self, branch: Tensor, hidden: Hidden8) -> Tensor:
        if self.post_norm is not None:  # its product has added the residual
            return add_and_normalize(branch, self.post_norm)
        residual = hidden.residual
        assert isinstance(residual, Tensor)  # no norm is deferred
        return add_and_normalize(branch, None, residual=residual, keep=residual)


def build_eight_bit_stack(
    encoder: Encoder,
    shared: SharedTables,
    tables: EmbeddingTables,
    kind: EightBit,
    texts: PackedBatch | None,
) -> LayerStack[Hidden8]:
    """Build the encoder. texts: show the ranges of activations and the means of values; without them nothing is
    smoothed, and the means are those of random tokens."""
    parameters = shared.parameters
    is_post_norm = has_post_norms(encoder)
    parts = load_parts(encoder, shared, tables.norm, kind, texts)
    embed, layers = (build_post_norm_layers if is_post_norm else build_pre_norm_layers)(tables, parts, kind)
    batch = copy_to_device(sample_tokens(encoder) if texts is None else texts, parameters.device)
    calibrate(embed, layers, [each.centering for each in parts], batch)
    last = LastLayer(
        layers[-1],
        post_norm=parts[-1].norms.mlp if is_post_norm else None,
        final_norm=parameters.load_optional_norm(encoder.final_norm, "final_norm"),
        dtype=tables.word_embeddings.dtype,
    )
    return LayerStack(embed, layers[:-1], last)


def load_parts(
    encoder: Encoder,
    shared: SharedTables,
    norm: Normalization | None,
    kind: EightBit,
    texts: PackedBatch | None,
) -> list[LayerParts8]:
    """Load the parts of all layers. norm: of the embeddings. texts: show the ranges of activations."""
    ranges: Sequence[LayerRanges | None] = [None] * len(encoder.layers)
    if texts is not None:
        ranges = observe_ranges(encoder, shared.parameters, texts)
    is_post_norm = has_post_norms(encoder)
    parts: list[LayerParts8] = []
    for number, (layer, layer_ranges) in enumerate(zip(encoder.layers, ranges, strict=True)):
        layer_input = LayerInput(norm, layer_ranges)
        parts.append(LayerParts8.load(layer, shared, f"layers.{number}", kind, layer_input))
        norm = parts[-1].norms.mlp if is_post_norm else None
    return parts


def has_post_norms(encoder: Encoder) -> bool:
    """Return whether all layers have their norms after the branches."""
    return all(layer.placement is NormPlacement.POST for layer in encoder.layers)


def build_post_norm_layers(
    tables: EmbeddingTables, parts: Sequence[LayerParts8], kind: EightBit
) -> tuple[Embed8, list[Layer8]]:
    """Build the embeddings and layers, whose norms give the rows that the layer after them reads."""
    embed = partial(embed_for_post_norms, replace(tables, norm=None), parts[0].before_attention, kind)
    layers: list[Layer8] = [
        FusedLayer(each.products, each.attention, each.build_post_norms(kind, following))
        for each, following in zip(parts, [*parts[1:], None], strict=True)
    ]
    return embed, layers


def build_pre_norm_layers(
    tables: EmbeddingTables, parts: Sequence[LayerParts8], kind: EightBit
) -> tuple[Embed8, list[Layer8]]:
    """Build the embeddings and layers, each of which ends with the norm that the next one begins with."""
    first, last = parts[0], parts[-1]
    layers: list[Layer8] = []
    for each, following in pairwise(parts):
        next_norm = following.before_attention
        assert next_norm is not None  # `find_eight_bit_obstacle` names the others
        norms = EightBitPreNorms(each.before_mlp, next_norm, kind)
        layers.append(FusedLayer(each.products, each.attention, norms))
    layers.append(FusedLayer(last.products, last.attention, EightBitPreNorms(last.before_mlp, None, kind)))
    norm = None if first.norms.attention is None else first.before_attention
    embed = partial(embed_for_pre_norms, tables, norm, kind)
    return embed, layers


def calibrate(
    embed: Embed8,
    layers: Sequence[Layer8],
    centerings: Sequence[ValueCentering | None],
    batch: DeviceBatch,
) -> None:
    """Take the means of the values of a batch out of every layer, one after another: each sees what the layers before
    it, which have none any more, give it."""
    hidden = embed(batch)
    for layer, centering in zip(layers, centerings, strict=True):
        if centering is not None:
            centering.calibrate(layer.attend(hidden, batch))
        if layer is not layers[-1]:
            hidden = layer(hidden, batch)


def sample_tokens(encoder: Encoder) -> PackedBatch:
    """Make a batch of random tokens."""
    length = min(SAMPLE_LENGTH, encoder.max_positions)
    shape = SAMPLE_TOKENS // length, length
    ids = np.random.default_rng(0).integers(0, encoder.embeddings.vocabulary, shape, np.int32)
    return PackedBatch.pack([*ids])
