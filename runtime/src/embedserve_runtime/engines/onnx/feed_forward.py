"""Writes the nodes of a layer besides attention: the MLP (plain, gated or a mixture of experts) and the convolution.

All of it on packed tokens (tokens, hidden).
"""

from __future__ import annotations

import numpy as np

from embedserve_runtime.engines.onnx.parts import Parts
from embedserve_runtime.model.architecture import Convolution, Experts, Mlp

END = np.iinfo(np.int64).max


def write_mlp(parts: Parts, hidden: str, mlp: Mlp | Experts, name: str) -> str:
    """Write the MLP of the layer `name`, before the residual is added."""
    if isinstance(mlp, Experts):
        return _write_experts(parts, hidden, mlp, f"{name}.mlp")
    graph = parts.graph
    if mlp.gated:
        both = parts.write_product(hidden, [f"{name}.mlp.gate", f"{name}.mlp.up"], mlp.up_bias)
        gate, up = graph.add_many("Split", both, outputs=2, axis=1, num_outputs=2)
        inner = graph.add("Mul", parts.write_activation(gate, mlp.activation), up)
    else:
        inner = parts.write_activation(
            parts.write_product(hidden, [f"{name}.mlp.up"], mlp.up_bias), mlp.activation
        )
    return parts.write_product(inner, [f"{name}.mlp.down"], mlp.down_bias)


def _write_experts(parts: Parts, hidden: str, experts: Experts, name: str) -> str:
    """Write the experts, each of which runs only on the tokens that chose it.

    A choice is numbered token * chosen + rank. The results, expert after expert, are brought back into the order of
    the choices, weighed and added up.
    """
    graph = parts.graph
    logits = parts.write_product(hidden, [f"{name}.router"], bias=False)
    shares, picked = graph.add_many(
        "TopK", graph.add("Softmax", logits, axis=1), graph.add_integers(experts.chosen), outputs=2, axis=1
    )
    picked = graph.add("Reshape", picked, graph.add_integers(-1))
    choices, results = [], []
    for expert in range(experts.count):
        here = graph.add("Equal", picked, graph.add_integers(expert))
        choices.append(graph.add("Reshape", graph.add("NonZero", here), graph.add_integers(-1)))
        tokens = graph.add(
            "Gather", hidden, graph.add("Div", choices[-1], graph.add_integers(experts.chosen))
        )
        results.append(_write_expert(parts, tokens, experts, expert, name))
    order = graph.add("Concat", *choices, axis=0)
    positions = graph.add("Range", *(graph.add_scalar(0), graph.add("Size", order), graph.add_scalar(1)))
    back = graph.add("ScatterElements", positions, order, positions, axis=0)
    rows = graph.add("Gather", graph.add("Concat", *results, axis=0), back)
    width = parts.weights.read_float32(f"{name}.bias").shape[0]
    by_token = graph.add("Reshape", rows, graph.add_integers(-1, experts.chosen, width))
    weighed = graph.add("Mul", by_token, graph.add("Unsqueeze", shares, graph.add_integers(2)))
    total = graph.add("ReduceSum", weighed, graph.add_integers(1), keepdims=0)
    return graph.add("Add", total, parts.add_parameter(f"{name}.bias"))


def _write_expert(parts: Parts, tokens: str, experts: Experts, number: int, name: str) -> str:
    graph, weights = parts.graph, parts.weights
    rows = slice(number * experts.intermediate, (number + 1) * experts.intermediate)
    up = graph.add_constant(f"{name}.up.{number}", weights.read_float32(f"{name}.up.weight")[rows].T)
    down = graph.add_constant(f"{name}.down.{number}", weights.read_float32(f"{name}.down.weight")[rows])
    inner = parts.write_activation(graph.add("MatMul", tokens, up), experts.activation)
    return graph.add("MatMul", inner, down)


def write_convolution(parts: Parts, hidden: str, description: Convolution, name: str) -> str:
    """Write the convolution as one product over each token's neighbors, concatenated.

    A neighbor counts when its position is as far from the token's as it lies from it: the positions of every
    sequence begin anew, so what is beyond a border never does.
    """
    graph, half = parts.graph, description.kernel // 2
    padded = graph.add("Pad", hidden, graph.add_integers(half, 0, half, 0))
    nowhere = graph.add_scalar(-half - 1)
    positions = graph.add("Pad", "positions", graph.add_integers(half, half), nowhere)
    pieces = []
    for offset in range(description.kernel):
        last = offset - 2 * half or END
        bounds = (graph.add_integers(offset), graph.add_integers(last), graph.add_integers(0))
        expected = graph.add("Add", "positions", graph.add_integers(offset - half))
        real = graph.add("Equal", graph.add("Slice", positions, *bounds), expected)
        pieces.append(
            graph.add(
                "Where",
                graph.add("Unsqueeze", real, graph.add_integers(1)),
                graph.add("Slice", padded, *bounds),
                graph.add_constant("zero", np.zeros(1, dtype=np.float32)),
            )
        )
    weight = parts.weights.read_float32(f"{name}.convolution.weight")
    stacked = weight.transpose(2, 1, 0).reshape(-1, len(weight))
    product = graph.add(
        "Gemm",
        graph.add("Concat", *pieces, axis=1),
        graph.add_constant(f"{name}.convolution.weight", stacked),
        parts.add_parameter(f"{name}.convolution.bias"),
    )
    return parts.write_activation(product, description.activation)
