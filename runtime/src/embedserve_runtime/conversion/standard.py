"""Writes a packed graph as an ONNX file with the usual inputs and outputs, for other programs and `model.onnx_file`.

In front of the graph the tokens of a padded batch are packed, one group of attention a sequence; after it they are
laid out again, pooled, put through the model's dense layers or its classifier. The weights stay in the file that the
packed graph has.

Inputs: `input_ids`, `attention_mask` and, for models that have several, `token_type_ids`, int64 (batch, length),
padding on either side; each row has a token. Outputs, those that are asked for:

    last_hidden_state     (batch, length, size), 0 where there is no token
    sentence_embedding    (batch, dimensions): pooled, dense layers, cut, normalized where the model normalizes
    logits                (batch, labels) of a classifier or reranker; (batch, length, width) of what a head makes of
                          each token, before its activation: lexical weights, the vocabulary's logits
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from embedserve_runtime.engines.onnx.activations import STANDARD_ACTIVATIONS
from embedserve_runtime.engines.onnx.graph import OUTPUT, TYPES_INPUT
from embedserve_runtime.engines.onnx.nodes import GraphWriter
from embedserve_runtime.errors import ConfigError
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.heads.classification import LoadedClassifierHead
from embedserve_runtime.heads.dense import NORMALIZE_EPS, DenseHead
from embedserve_runtime.heads.layers import HeadLayerWeights
from embedserve_runtime.heads.sparse import LoadedSparseHead
from embedserve_runtime.heads.token_heads import LoadedLexicalHead
from embedserve_runtime.model.architecture import NormKind
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.onnx_outputs import HIDDEN, SENTENCE_EMBEDDING, list_onnx_outputs
from embedserve_runtime.model.pipeline import Pooling
from embedserve_runtime.runners.base import Heads

IDS, MASK, TYPES = "input_ids", "attention_mask", "token_type_ids"
# Names of what is added begin with it, so that none is one of the packed graph's.
STEM = "standard:"


def check_outputs(card: ModelCard, outputs: Sequence[str]) -> None:
    """Raise ConfigError for an output that the model does not have, or that a file cannot give."""
    can = list_onnx_outputs(card)
    missing = [name for name in outputs if name not in can]
    if missing:
        raise ConfigError(
            f"onnx.outputs: {', '.join(missing)} cannot be written for {card.source}, of which a file can give "
            f"{', '.join(can) or 'nothing'}"
        )


def build_standard_model(
    packed: onnx.ModelProto, card: ModelCard, heads: Heads, outputs: Sequence[str]
) -> onnx.ModelProto:
    """Build the graph that other programs run, with one row for each text instead of packed tokens.

    packed: as `engines.onnx.graph` writes it or `rewriting` rewrites it; it is not changed."""
    has_types = any(value.name == TYPES_INPUT[0] for value in packed.graph.input)
    before = GraphWriter(stem=STEM)
    token_indices = _pack(before, has_types=has_types)
    tail = _OutputTail(before.continue_later(), card, token_indices)
    declared = [tail.write_output(name, heads) for name in outputs]
    model = onnx.ModelProto()
    model.CopyFrom(packed)
    graph = model.graph
    del graph.input[:], graph.output[:], graph.node[:]
    graph.input.extend(
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"])
        for name in (IDS, MASK, *([TYPES] if has_types else []))
    )
    graph.output.extend(declared)
    graph.node.extend([*before.nodes, *packed.graph.node, *tail.graph.nodes])
    own = {tensor.name for tensor in graph.initializer}
    graph.initializer.extend(
        numpy_helper.from_array(value, name) for name, value in before.initializers.items() if name not in own
    )
    return model


def _pack(graph: GraphWriter, *, has_types: bool) -> str:
    """Write the packed graph's inputs; return the indices of the tokens in the batch, int64 (tokens, 2)."""
    token_indices = graph.add("Transpose", graph.add("NonZero", MASK), perm=[1, 0])
    first, second, minus_one = graph.add_integers(0), graph.add_integers(1), graph.add_integers(-1)
    lengths = graph.add("ReduceSum", MASK, second, keepdims=1)
    counted = graph.add("Sub", graph.add("CumSum", MASK, graph.add_scalar(1)), second)
    graph.add_named("GatherND", "token_ids", IDS, token_indices)
    graph.add_named("GatherND", "positions", counted, token_indices)
    if has_types:
        graph.add_named("GatherND", TYPES_INPUT[0], TYPES, token_indices)
    graph.add_named("CumSum", "ends", lengths, graph.add_scalar(0))
    graph.add_named("Sub", "starts", "ends", lengths)
    ones = graph.add("Add", graph.add("Mul", lengths, first), second)
    columns = graph.add("Mul", ones, minus_one)
    graph.add_named("Concat", "shapes", ones, lengths, columns, axis=1)
    graph.add_named("Gather", "groups", graph.add("Shape", lengths), graph.add_scalar(0))
    return token_indices


class _OutputTail:
    """Writes what follows the packed hidden states."""

    def __init__(self, graph: GraphWriter, card: ModelCard, token_indices: str) -> None:
        self.graph = graph
        self._card = card
        self._token_indices = token_indices

    def write_output(self, name: str, heads: Heads) -> onnx.ValueInfoProto:
        """Write the output; gives its declaration."""
        shape: list[str | int]
        if name == HIDDEN:
            width = self._card.encoder.width
            value = self._lay_out(OUTPUT, width)
            shape = ["batch", "length", width]
        elif name == SENTENCE_EMBEDDING:
            assert isinstance(heads.dense, DenseHead), "checked"
            value, shape = self._write_embedding(heads.dense), ["batch", self._card.pipeline.dimensions]
        elif isinstance(heads.logits, LoadedClassifierHead):
            value = self._write_layers(self._write_classifier_states(heads.logits), heads.logits.layers)
            shape = ["batch", len(heads.logits.head.labels)]
        else:
            assert isinstance(heads.sparse, LoadedLexicalHead | LoadedSparseHead), "checked"
            width = heads.sparse.layers[-1].layer.out_features
            value = self._lay_out(self._write_layers(OUTPUT, heads.sparse.layers), width)
            shape = ["batch", "length", width]
        self.graph.add_named("Identity", name, value)
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    def _lay_out(self, rows: str, width: int) -> str:
        """Lay packed rows out, (tokens, width) to (batch, length, width)."""
        graph = self.graph
        shape = graph.add("Concat", graph.add("Shape", IDS), graph.add_integers(width), axis=0)
        empty = graph.add("Expand", self._add_number("0", 0), shape)
        return graph.add("ScatterND", empty, self._token_indices, rows)

    def _write_embedding(self, head: DenseHead) -> str:
        graph, pipeline = self.graph, self._card.pipeline
        pooled = [self._write_pooling(pooling) for pooling in head.pooling]
        rows = self._write_layers(
            pooled[0] if len(pooled) == 1 else graph.add("Concat", *pooled, axis=1), head.layers
        )
        if pipeline.dimensions != pipeline.full_dimensions:
            ends = graph.add_integers(pipeline.dimensions)
            rows = graph.add("Slice", rows, graph.add_integers(0), ends, graph.add_integers(1))
        if not pipeline.normalize:
            return rows
        norms = graph.add("ReduceL2", rows, graph.add_integers(1), keepdims=1)
        return graph.add("Div", rows, graph.add("Max", norms, self._add_number("eps", NORMALIZE_EPS)))

    def _write_pooling(self, pooling: Pooling) -> str:
        """Write the pooled rows, (batch, size), as `heads.dense.pool` has it."""
        graph, second = self.graph, self.graph.add_integers(1)
        match pooling:
            case Pooling.CLS:
                return graph.add("Gather", OUTPUT, graph.add("Squeeze", "starts", second))
            case Pooling.LAST:
                last = graph.add("Sub", graph.add("Squeeze", "ends", second), second)
                return graph.add("Gather", OUTPUT, last)
        size = self._card.encoder.width
        laid, mask = self._lay_out(OUTPUT, size), graph.add("Unsqueeze", MASK, graph.add_integers(2))
        if pooling is Pooling.MAX:
            least = self._add_number("least", np.finfo(np.float32).min)
            masked = graph.add("Where", graph.add("Cast", mask, to=TensorProto.BOOL), laid, least)
            return graph.add("ReduceMax", masked, second, keepdims=0)
        weights = graph.add("Cast", mask, to=TensorProto.FLOAT)
        if pooling is Pooling.WEIGHTED_MEAN:
            numbers = graph.add("CumSum", weights, graph.add_scalar(1))
            weights = graph.add("Mul", numbers, weights)
        sums = graph.add("ReduceSum", graph.add("Mul", laid, weights), second, keepdims=0)
        count = graph.add("ReduceSum", weights, second, keepdims=0)
        return graph.add("Div", sums, graph.add("Sqrt", count) if pooling is Pooling.MEAN_SQRT else count)

    def _write_classifier_states(self, head: LoadedClassifierHead) -> str:
        """Write the states that a classifier reads, (batch, size)."""
        padding, graph, second = head.head.padding, self.graph, self.graph.add_integers(1)
        if padding is None:
            return self._write_pooling(head.head.pooling)
        # The last token that is not padding: the greatest of the positions of such, the first token without any.
        counted = graph.add("Sub", graph.add("CumSum", MASK, graph.add_scalar(1)), second)
        is_padding = graph.add("Equal", IDS, graph.add_integers(padding))
        real = graph.add("Mul", graph.add("Cast", graph.add("Not", is_padding), to=TensorProto.INT64), MASK)
        last = graph.add("ReduceMax", graph.add("Mul", counted, real), second, keepdims=0)
        starts = graph.add("Squeeze", "starts", second)
        return graph.add("Gather", OUTPUT, graph.add("Add", starts, last))

    def _write_layers(self, rows: str, layers: Sequence[HeadLayerWeights]) -> str:
        for layer in layers:
            rows = self._write_layer(rows, layer)
        return rows

    def _write_layer(self, rows: str, loaded: HeadLayerWeights) -> str:
        graph, layer = self.graph, loaded.layer
        product = self._write_product(rows, loaded.weight)
        if loaded.bias is not None:
            product = graph.add("Add", product, self._add_array(loaded.bias))
        value = STANDARD_ACTIVATIONS[layer.activation](graph, product)
        if layer.norm is not None and loaded.norm_weight is not None:
            bias = [] if loaded.norm_bias is None else [self._add_array(loaded.norm_bias)]
            plain = layer.norm.kind is NormKind.LAYER
            operator = "LayerNormalization" if plain else "SimplifiedLayerNormalization"
            value = graph.add(
                operator, value, self._add_array(loaded.norm_weight), *bias, axis=-1, epsilon=layer.norm.eps
            )
        if not layer.residual:
            return value
        return graph.add(
            "Add", value, rows if loaded.residual is None else self._write_product(rows, loaded.residual)
        )

    def _write_product(self, rows: str, weight: FloatArray) -> str:
        return self.graph.add("MatMul", rows, self._add_array(weight.T))

    def _add_number(self, name: str, value: float | np.float32) -> str:
        return self.graph.add_constant(f"{STEM}{name}", np.array(value, dtype=np.float32))

    def _add_array(self, value: FloatArray) -> str:
        return self.graph.add_constant(self.graph.make_name("array"), value)
