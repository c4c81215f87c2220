"""Writes the ONNX graph of an encoder straight from its description and weights: packed, with fused operators.

Inputs of the graph are the packed token ids, sequences of one length side by side, their positions, and the arrays of
`grouping.EqualGroups`; the output is the packed final hidden state. Nothing is padded (`attention.py` has the rest).
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from embedserve_runtime.engines.onnx.attention import write_attention
from embedserve_runtime.engines.onnx.feed_forward import write_convolution, write_mlp
from embedserve_runtime.engines.onnx.layer_inputs import write_layer_input, write_layer_inputs
from embedserve_runtime.engines.onnx.nodes import FUSED, GraphWriter
from embedserve_runtime.engines.onnx.parts import Parts
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.model.architecture import Embeddings, Encoder, Layer, NormPlacement
from embedserve_runtime.model.checkpoint import Weights

OPSET = 23
IR_VERSION = 11
OUTPUT = "hidden"

# name, element type, shape of every input.
INPUTS: tuple[tuple[str, int, list[int | str]], ...] = (
    ("token_ids", TensorProto.INT64, ["tokens"]),
    ("positions", TensorProto.INT64, ["tokens"]),
    ("starts", TensorProto.INT64, ["groups", 1]),
    ("ends", TensorProto.INT64, ["groups", 1]),
    ("shapes", TensorProto.INT64, ["groups", 3]),
    ("groups", TensorProto.INT64, []),
)

# Besides, for encoders with several token types.
TYPES_INPUT = ("token_types", TensorProto.INT64, ["tokens"])

# Besides, where attention does not see all tokens: how many leading ones of each sequence it sees, and which sequences
# each group has.
SEEN_INPUTS = (
    ("attended", TensorProto.INT32, ["sequences"]),
    ("firsts", TensorProto.INT64, ["groups", 1]),
    ("lasts", TensorProto.INT64, ["groups", 1]),
)

Arrays = dict[str, NDArray[np.generic]]


def takes_attention_mask(inputs: Collection[str]) -> bool:
    """Return whether a graph with inputs of these names takes an attention mask."""
    return all(name in inputs for name, _, _ in SEEN_INPUTS)


def takes_types(encoder: Encoder) -> bool:
    """Return whether the graph has the input `token_types`."""
    return encoder.embeddings.token_types > 1


def build(
    encoder: Encoder, weights: Weights, *, has_attention_mask: bool = False
) -> tuple[onnx.ModelProto, Arrays]:
    """Build the model without its weights, and the weights by initializer name. Raises ModelInvalid.

    has_attention_mask: whether batches will have tokens that attention does not see (`PackedBatch.attended_lengths`).

    The weights stay outside the message, since protobuf ends at 2 GiB and a copy of them would double the memory.
    """
    graph = GraphWriter()
    parts = Parts(graph, weights, has_attention_mask=has_attention_mask)
    hidden = _write_encoder(parts, encoder)
    if encoder.output is not None:
        hidden = parts.write_product(hidden, ["output"], bias=False)
    graph.nodes.append(helper.make_node("Identity", [hidden], [OUTPUT]))
    # Constants of the graph itself are needed for its shapes while it is loaded, so they go inside.
    small = {name: value for name, value in graph.initializers.items() if value.dtype == np.int64}
    large = {name: value for name, value in graph.initializers.items() if name not in small}
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "encoder",
            [
                helper.make_tensor_value_info(name, kind, shape)
                for name, kind, shape in (
                    *INPUTS,
                    *([TYPES_INPUT] if takes_types(encoder) else []),
                    *(SEEN_INPUTS if has_attention_mask else ()),
                )
            ],
            [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["tokens", encoder.width])],
            initializer=[
                *(numpy_helper.from_array(value, name) for name, value in small.items()),
                *(declare_initializer(name, value) for name, value in large.items()),
            ],
        ),
        opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(FUSED, 1)],
        ir_version=IR_VERSION,
        producer_name="embedserve",
    )
    return model, large


def _write_encoder(parts: Parts, encoder: Encoder) -> str:
    """Write embeddings, layers and the final norm. Between layers that norm first a branch is kept apart from the
    residual until the next norm."""
    residual = _write_embeddings(parts, encoder)
    inputs = [] if encoder.layer_inputs is None else write_layer_inputs(parts, residual, encoder)
    pending: str | None = None
    for number, layer in enumerate(encoder.layers):
        name = f"layers.{number}"
        if layer.placement is NormPlacement.POST:
            residual = _write_post_norm_layer(parts, residual, layer, encoder, name)
            continue
        normed, residual = _write_pre_norm_layer(parts, pending, residual, layer, name)
        branch = _write_post_norm(
            parts, _write_attention_branch(parts, normed, layer, encoder, name), layer, f"{name}.attention"
        )
        normed, residual = parts.add_and_norm(branch, residual, layer.norm, f"{name}.mlp.norm")
        pending = _write_post_norm(parts, write_mlp(parts, normed, layer.mlp, name), layer, f"{name}.mlp")
        if encoder.layer_inputs is not None:
            total = parts.graph.add("Add", pending, residual)
            residual = write_layer_input(parts, total, inputs[number], encoder.layer_inputs, name)
            pending = None
    if encoder.final_norm is None:
        return residual if pending is None else parts.graph.add("Add", pending, residual)
    if pending is None:
        return parts.write_norm(residual, encoder.final_norm, "final_norm")
    return parts.add_and_norm(pending, residual, encoder.final_norm, "final_norm")[0]


def _write_post_norm_layer(parts: Parts, hidden: str, layer: Layer, encoder: Encoder, name: str) -> str:
    """Write a layer whose norms stand after the addition."""
    branch = _write_attention_branch(parts, hidden, layer, encoder, name)
    if layer.inner_norm:
        branch, _ = parts.add_and_norm(branch, hidden, layer.norm, f"{name}.attention.inner_norm")
    attended, _ = parts.add_and_norm(branch, hidden, layer.norm, f"{name}.attention.norm")
    branch = write_mlp(parts, attended, layer.mlp, name)
    output, _ = parts.add_and_norm(branch, attended, layer.norm, f"{name}.mlp.norm")
    if layer.convolution is None:
        return output
    branch = write_convolution(parts, hidden, layer.convolution, name)
    return parts.add_and_norm(branch, output, layer.norm, f"{name}.convolution.norm")[0]


def _write_pre_norm_layer(
    parts: Parts, pending: str | None, residual: str, layer: Layer, name: str
) -> tuple[str, str]:
    """Write a layer that norms first; return the input of its attention and the residual."""
    if not layer.attention_norm:
        total = residual if pending is None else parts.graph.add("Add", pending, residual)
        return total, total
    if pending is None:
        return parts.write_norm(residual, layer.norm, f"{name}.attention.norm"), residual
    return parts.add_and_norm(pending, residual, layer.norm, f"{name}.attention.norm")


def _write_post_norm(parts: Parts, branch: str, layer: Layer, name: str) -> str:
    if layer.placement is not NormPlacement.SANDWICH:
        return branch
    return parts.write_norm(branch, layer.norm, f"{name}.post_norm")


def _write_embeddings(parts: Parts, encoder: Encoder) -> str:
    graph, weights, embeddings = parts.graph, parts.weights, encoder.embeddings
    word_embeddings = weights.read_float32("embeddings.word.weight")
    if embeddings.scale != 1.0:
        word_embeddings = word_embeddings * np.float32(embeddings.scale)
    types = weights.read_float32("embeddings.token_type.weight") if embeddings.token_types else None
    if embeddings.positions is None and types is not None and len(types) == 1:
        word_embeddings, types = word_embeddings + types[0], None
    hidden = graph.add("Gather", graph.add_constant("embeddings.word", word_embeddings), "token_ids")
    row = _write_position_and_type_row(parts, embeddings, types)
    has_projection = embeddings.width not in (None, encoder.hidden_size)
    if has_projection and not embeddings.norm_first:
        total = hidden if row is None else graph.add("Add", hidden, row)
        hidden, row = parts.write_product(total, ["embeddings.projection"], bias=False), None
    normed = _write_embedding_norm(parts, embeddings, hidden, row)
    if has_projection and embeddings.norm_first:
        return parts.write_product(normed, ["embeddings.projection"], bias=True)
    return normed


def _write_embedding_norm(parts: Parts, embeddings: Embeddings, hidden: str, row: str | None) -> str:
    """Write norm(hidden + row), without what is not there."""
    graph = parts.graph
    if row is None:
        return parts.write_norm(hidden, embeddings.norm, "embeddings.norm") if embeddings.norm else hidden
    if embeddings.norm is None:
        return graph.add("Add", hidden, row)
    return parts.add_and_norm(hidden, row, embeddings.norm, "embeddings.norm")[0]


def _write_position_and_type_row(
    parts: Parts, embeddings: Embeddings, types: FloatArray | None
) -> str | None:
    """Write the sum of position and type embeddings of each token; None when the encoder has neither.

    Positions and types lie in one table, type after type, so that a type costs no row of its own.
    """
    graph = parts.graph
    if embeddings.positions is None:
        if types is None:
            return None
        return graph.add("Gather", graph.add_constant("embeddings.type", types), "token_types")
    table = parts.weights.read_float32("embeddings.position.weight")[embeddings.positions.offset :]
    index = "positions"
    if types is not None:
        if len(types) > 1:
            first_row = graph.add("Mul", "token_types", graph.add_integers(len(table)))
            index = graph.add("Add", "positions", first_row)
        table = np.concatenate([table + row for row in types])
    return graph.add("Gather", graph.add_constant("embeddings.position", table), index)


def _write_attention_branch(parts: Parts, hidden: str, layer: Layer, encoder: Encoder, name: str) -> str:
    attended = write_attention(parts, hidden, layer.attention, encoder.max_positions, f"{name}.attention")
    return parts.write_product(attended, [f"{name}.attention.output"], layer.attention.output_bias)


def declare_initializer(name: str, value: NDArray[np.generic]) -> TensorProto:
    """Declare an initializer without bytes, which are put into a file later."""
    kind = helper.np_dtype_to_tensor_dtype(value.dtype)
    tensor = TensorProto(name=name, data_type=kind, dims=value.shape)
    tensor.data_location = TensorProto.EXTERNAL
    return tensor
