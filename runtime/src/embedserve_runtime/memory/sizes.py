"""Describes what a model takes in memory, from its card alone: nothing is loaded for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

import msgspec

from embedserve_runtime.forward.outputs import OutputKind
from embedserve_runtime.memory.activation_memory import FLOAT_BYTES, ActivationSizes, estimate_activations
from embedserve_runtime.model.architecture import Alibi, Attention, Encoder, RelativeBuckets, Rotary
from embedserve_runtime.model.card import ModelCard

MIB = 2**20
PROCESS_BYTES = 140 * MIB
"""The interpreter, the HTTP server and ONNX Runtime, without a model."""
TORCH_BYTES = 500 * MIB
"""Bytes that torch takes besides those of the process."""
TORCH_SHARE = 2.2
"""Bytes that torch's operators take of a batch for each byte that ONNX Runtime takes."""
LOADING_SHARE = 0.15
"""The share of the weights that loading takes besides them at its highest."""
TOKEN_BYTES = {"WordPiece": 500, "BPE": 1_250, "Unigram": 1_700}
"""Bytes that a tokenizer takes for each token of its vocabulary, by the type of its model; others as the largest."""
SPARSE_COLUMNS = 1_024
"""Entries of a sparse vector, generously; with SPLADE and BGE-M3 a text has some hundred."""
VECTORS_OF_TEXT = 64
"""Vectors of a text of a late-interaction model."""


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """Bytes that a model takes.

    process: the engine's libraries without a model. weights: in the precision in which they run. tables: what depends
    on positions alone, computed at the start. loading: what is taken besides for a moment while the weights are loaded.
    activations: of batches; None for an ONNX file of another's making, whose operations are not known.
    columns: numbers of one input's result.
    """

    process: int
    weights: int
    tables: int
    loading: int
    tokenizer: int
    columns: int
    activations: ActivationSizes | None

    def with_weights(self, count: int) -> ModelSizes:
        """Return the sizes with the weights of a file."""
        return replace(self, weights=count, loading=round(LOADING_SHARE * count))


def describe_sizes(
    card: ModelCard, engine: Literal["onnx", "torch", "static"] = "onnx", number_bytes: int = FLOAT_BYTES
) -> ModelSizes:
    """Return the sizes of a model that runs the layers of its description; those of several routes add up, of their
    activations the larger count. number_bytes: of one number in the precision in which it runs."""
    sizes = _describe_route(card, engine, number_bytes)
    for route in card.list_routes()[1:]:
        route_sizes = _describe_route(route, engine, number_bytes)
        # Tasks share the tokenizer of the first.
        has_tokenizer = card.query is not None and route is card.query.card
        sizes = replace(
            sizes,
            weights=sizes.weights + route_sizes.weights,
            tables=sizes.tables + route_sizes.tables,
            loading=max(sizes.loading, route_sizes.loading),
            tokenizer=sizes.tokenizer + (route_sizes.tokenizer if has_tokenizer else 0),
            activations=_choose_larger(sizes.activations, route_sizes.activations),
        )
    return sizes


def _describe_route(card: ModelCard, engine: str, number_bytes: int) -> ModelSizes:
    has_layers = card.backbone is None
    weights = number_bytes * count_parameters(card)
    activations = estimate_activations(card.encoder)
    if engine == "torch":
        activations = replace(
            activations, token=round(TORCH_SHARE * activations.token * number_bytes / FLOAT_BYTES)
        )
    return ModelSizes(
        process=PROCESS_BYTES + (TORCH_BYTES if engine == "torch" else 0),
        weights=weights,
        tables=FLOAT_BYTES * _count_table_numbers(card.encoder) if has_layers else 0,
        loading=round(LOADING_SHARE * weights),
        tokenizer=estimate_tokenizer(card.tokenizer.content, card.encoder.embeddings.vocabulary),
        columns=_count_columns(card),
        activations=activations,
    )


def _choose_larger(left: ActivationSizes | None, right: ActivationSizes | None) -> ActivationSizes | None:
    if left is None or right is None:
        return None
    return max(left, right, key=lambda sizes: sizes.token)


def _count_columns(card: ModelCard) -> int:
    if card.main_output is OutputKind.SPARSE:
        return min(card.sparse_width, SPARSE_COLUMNS)
    if card.main_output is OutputKind.MULTI_VECTOR:
        return card.pipeline.dimensions * VECTORS_OF_TEXT
    return card.pipeline.dimensions


def count_parameters(card: ModelCard) -> int:
    """Return the numbers of the encoder, and of the heads behind it."""
    encoder = sum(prod(parameter.shape) for parameter in card.encoder.parameters())
    tails = [card.pipeline, *([card.query.card.pipeline] if card.query and card.shares_encoder else [])]
    dense = sum(
        (layer.in_features * (1 + layer.projects_residual) + layer.bias) * layer.out_features
        for tail in tails
        for layer in tail.dense
    )
    heads = [*([] if card.head is None else [card.head]), *card.token_heads]
    layers = [layer for head in heads for layer in head.layers]
    return (
        encoder
        + dense
        + sum(
            (layer.in_features * (1 + bool(layer.residual_weight)) + 1) * layer.out_features
            for layer in layers
        )
    )


def _count_table_numbers(encoder: Encoder) -> int:
    """Count the numbers of the tables that the graph has besides weights: angles, distances, DeBERTa's positions."""
    return sum(dict(_iterate_tables(encoder)).values()) + sum(
        # Both terms of the relative embeddings, through each layer's products.
        2 * 2 * layer.attention.disentangled.span * layer.attention.heads * layer.attention.head_size
        for layer in encoder.layers
        if layer.attention.disentangled is not None
    )


def _iterate_tables(encoder: Encoder) -> Iterator[tuple[object, int]]:
    """Yield what is one table for all layers of the same form, with its numbers."""
    for layer in encoder.layers:
        attention = layer.attention
        if attention.rotary is not None:
            yield attention.rotary, 2 * encoder.max_positions * _count_frequencies(attention.rotary)
        rows = _count_distance_rows(attention)
        if rows:
            form = (attention.causal, attention.window, attention.distance_bias)
            yield form, rows * 2 * encoder.max_positions


def _count_frequencies(rotary: Rotary) -> int:
    return len(rotary.inverse_frequencies)


def _count_distance_rows(attention: Attention) -> int:
    if isinstance(attention.distance_bias, Alibi | RelativeBuckets):
        return attention.heads
    return int(attention.causal or attention.window is not None)


class _TokenizerModel(msgspec.Struct):
    type: str = ""


class _TokenizerFile(msgspec.Struct):
    model: _TokenizerModel = msgspec.field(default_factory=_TokenizerModel)


def estimate_tokenizer(content: bytes, vocabulary: int) -> int:
    """Return the bytes of a tokenizer. content: of tokenizer.json, of which only the type of the model is read."""
    try:
        kind = msgspec.json.decode(content, type=_TokenizerFile).model.type
    except msgspec.MsgspecError:
        kind = ""
    return TOKEN_BYTES.get(kind, max(TOKEN_BYTES.values())) * vocabulary
