"""Writes the ONNX graph of an encoder straight from its description and weights: packed, with fused operators.

Inputs of the graph are the packed token ids, their positions, and the index arrays of `grouping.AttentionGroups`;
the output is the packed final hidden state. All linear layers see real tokens only. Attention is a loop over groups
of similar length: each iteration gathers its rows of the joint query/key/value product into a padded block, runs
one MultiHeadAttention with the real key lengths, and the results are put back in packed order at the end.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from embedserve_runtime.engines.base import FloatArray
from embedserve_runtime.engines.onnx.nodes import FUSED, GraphWriter
from embedserve_runtime.model.architecture import Encoder, Layer, MlpActivation
from embedserve_runtime.model.checkpoint import Weights

OPSET = 21
IR_VERSION = 10
OUTPUT = "hidden"

# name, element type, shape of every input.
INPUTS: tuple[tuple[str, int, list[int | str]], ...] = (
    ("token_ids", TensorProto.INT64, ["tokens"]),
    ("positions", TensorProto.INT64, ["tokens"]),
    ("rows", TensorProto.INT64, ["padded"]),
    ("row_starts", TensorProto.INT64, ["groups+1"]),
    ("shapes", TensorProto.INT64, ["groups", 2]),
    ("lengths", TensorProto.INT32, ["sequences"]),
    ("length_starts", TensorProto.INT64, ["groups+1"]),
    ("unpad", TensorProto.INT64, ["tokens"]),
    ("groups", TensorProto.INT64, []),
)


def build(encoder: Encoder, weights: Weights) -> tuple[onnx.ModelProto, dict[str, FloatArray]]:
    """The model without its weights, and the weights by initialiser name.

    The weights stay outside the message, since protobuf ends at 2 GiB and a copy of them would double the memory.
    """
    return _Builder(encoder, weights).build()


class _Builder:
    def __init__(self, encoder: Encoder, weights: Weights) -> None:
        self._encoder = encoder
        self._weights = weights
        self._graph = GraphWriter()

    def build(self) -> tuple[onnx.ModelProto, dict[str, FloatArray]]:
        graph = self._graph
        small = {
            "one": np.array(1, dtype=np.int64),
            "flat": np.array([-1], dtype=np.int64),
        }
        hidden = self._embeddings()
        for number, layer in enumerate(self._encoder.layers):
            hidden = self._layer(hidden, layer, f"layers.{number}")
        graph.nodes.append(helper.make_node("Identity", [hidden], [OUTPUT]))
        size = self._encoder.hidden_size
        large = {name: value.astype(np.float32, copy=False) for name, value in graph.initializers.items()}
        model = helper.make_model(
            helper.make_graph(
                graph.nodes,
                "encoder",
                [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in INPUTS],
                [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["tokens", size])],
                initializer=[
                    *(onnx.numpy_helper.from_array(value, name) for name, value in small.items()),
                    *(_external(name, value) for name, value in large.items()),
                ],
            ),
            opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(FUSED, 1)],
            ir_version=IR_VERSION,
            producer_name="embedserve",
        )
        return model, large

    def _embeddings(self) -> str:
        graph, weights = self._graph, self._weights
        position = weights.float32("embeddings.position.weight")
        if self._encoder.embeddings.token_types:
            # Single texts are all of type 0, so its row can be added to every position once, here.
            position = position + weights.float32("embeddings.token_type.weight")[0]
        return self._add_and_norm(
            graph.add("Gather", self._parameter("embeddings.word.weight"), "token_ids"),
            graph.add("Gather", graph.constant("embeddings.position", position), "positions"),
            "embeddings.norm",
        )

    def _layer(self, hidden: str, layer: Layer, name: str) -> str:
        attended = self._attention(hidden, layer, f"{name}.attention")
        output = self._product(attended, f"{name}.attention.output")
        hidden = self._add_and_norm(
            output, hidden, f"{name}.attention.norm", bias=self._parameter(f"{name}.attention.output.bias")
        )
        inner = self._activation(
            self._product(hidden, f"{name}.mlp.up"), layer.mlp.activation, f"{name}.mlp.up.bias"
        )
        output = self._product(inner, f"{name}.mlp.down")
        return self._add_and_norm(
            output, hidden, f"{name}.mlp.norm", bias=self._parameter(f"{name}.mlp.down.bias")
        )

    def _attention(self, hidden: str, layer: Layer, name: str) -> str:
        """Packed (tokens, hidden) to packed (tokens, heads x head size), before the output product."""
        graph, weights = self._graph, self._weights
        parts = [f"{name}.{projection}" for projection in ("query", "key", "value")]
        weight = np.concatenate([weights.float32(f"{part}.weight") for part in parts])
        bias = np.concatenate([weights.float32(f"{part}.bias") for part in parts])
        joint = graph.add(
            "Gemm",
            hidden,
            graph.constant(f"{name}.qkv.weight", weight.T),
            graph.constant(f"{name}.qkv.bias", bias),
        )
        collected = graph.add(
            "Loop",
            "groups",
            "",
            graph.add("SequenceEmpty"),
            body=self._attention_of_one_group(joint, layer, name),
        )
        return graph.add("Gather", graph.add("ConcatFromSequence", collected, axis=0), "unpad")

    def _attention_of_one_group(self, joint: str, layer: Layer, name: str) -> onnx.GraphProto:
        body = self._graph.subgraph()
        number, keep_going, collected = (
            body.fresh("number"),
            body.fresh("keep_going"),
            body.fresh("collected"),
        )
        inner = layer.attention.heads * layer.attention.head_size

        def slice_of(values: str, starts: str) -> str:
            bounds = (number, body.add("Add", number, "one"))
            return body.add(
                "Slice",
                values,
                *(body.add("Reshape", body.add("Gather", starts, at), "flat") for at in bounds),
            )

        rows = body.add("Gather", joint, slice_of("rows", "row_starts"))
        shape = body.add("Reshape", body.add("Gather", "shapes", number), "flat")
        width = body.add("Constant", value_ints=[3 * inner])
        block = body.add("Reshape", rows, body.add("Concat", shape, width, axis=0))
        query, key, value = body.add_many("Split", block, outputs=3, axis=2, num_outputs=3)
        attended = body.add(
            "MultiHeadAttention",
            *(query, key, value, "", slice_of("lengths", "length_starts")),
            domain=FUSED,
            num_heads=layer.attention.heads,
        )
        packed = body.add("Reshape", attended, body.add("Constant", value_ints=[-1, inner]))
        grown = body.add("SequenceInsert", collected, packed)
        still = body.add("Identity", keep_going)
        return helper.make_graph(
            body.nodes,
            f"{name}.group",
            [
                helper.make_tensor_value_info(number, TensorProto.INT64, []),
                helper.make_tensor_value_info(keep_going, TensorProto.BOOL, []),
                helper.make_tensor_sequence_value_info(collected, TensorProto.FLOAT, None),
            ],
            [
                helper.make_tensor_value_info(still, TensorProto.BOOL, []),
                helper.make_tensor_sequence_value_info(grown, TensorProto.FLOAT, None),
            ],
        )

    def _activation(self, value: str, activation: MlpActivation, bias: str) -> str:
        bias = self._parameter(bias)
        match activation:
            case MlpActivation.GELU:
                return self._graph.add("BiasGelu", value, bias, domain=FUSED)
            case MlpActivation.GELU_TANH:
                return self._graph.add("FastGelu", value, bias, domain=FUSED)
            case MlpActivation.RELU:
                return self._graph.add("Relu", self._graph.add("Add", value, bias))
            case MlpActivation.SILU:
                return self._graph.add(
                    "QuickGelu", self._graph.add("Add", value, bias), domain=FUSED, alpha=1.0
                )

    def _product(self, value: str, name: str) -> str:
        weight = self._weights.float32(f"{name}.weight")
        return self._graph.add("MatMul", value, self._graph.constant(f"{name}.weight", weight.T))

    def _add_and_norm(self, value: str, residual: str, name: str, bias: str | None = None) -> str:
        inputs = [value, residual, self._parameter(f"{name}.weight"), self._parameter(f"{name}.bias")]
        if bias is not None:
            inputs.append(bias)
        return self._graph.add(
            "SkipLayerNormalization", *inputs, domain=FUSED, epsilon=self._encoder.norm_eps
        )

    def _parameter(self, name: str) -> str:
        return self._graph.constant(name, self._weights.float32(name))


def _external(name: str, value: FloatArray) -> TensorProto:
    """A declaration without bytes; the session is given the array under the same name."""
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=value.shape)
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="in-memory")
    return tensor
