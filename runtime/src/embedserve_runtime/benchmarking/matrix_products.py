"""Counts the floating-point operations of a model, and measures the rate that this machine reaches on its matrices."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper

from embedserve_runtime.model.architecture import Encoder, Experts, Layer

# The rows of the measured products, like the tokens of a batch; more would not fit into the processor's cache.
ROWS = 512
REPEATS = 7

Lengths = NDArray[np.int64]


def count_flops(encoder: Encoder, lengths: Lengths) -> float:
    """Count multiplications and additions of linear layers and attention, over sequences of these lengths."""
    tokens, pairs = float(lengths.sum()), float((lengths.astype(np.float64) ** 2).sum())
    return sum(
        2.0 * tokens * _count_weights(encoder.hidden_size, layer)
        + 4.0 * layer.attention.heads * layer.attention.head_size * pairs
        for layer in encoder.layers
    )


def measure_peak_flops(encoder: Encoder, threads: int) -> float:
    """Measure the operations per second of the four products of the first layer in float32, the best of a few runs."""
    run, operations = build_products(encoder, threads)
    run()
    best = min(_measure_seconds(run) for _ in range(REPEATS))
    return operations / best


def build_products(encoder: Encoder, threads: int, rows: int = ROWS) -> tuple[Callable[[], object], float]:
    """Build a function that runs the products of the first layer; return it with the number of their operations."""
    hidden, layer = encoder.hidden_size, encoder.layers[0]
    heads, inner = layer.attention, layer.attention.heads * layer.attention.head_size
    intermediate = layer.mlp.intermediate
    shapes = [
        (hidden, (heads.heads + 2 * heads.kv_heads) * heads.head_size),
        (inner, hidden),
        (hidden, intermediate),
        (intermediate, hidden),
    ]
    source = np.random.default_rng(0)
    feeds, nodes, weights = {}, [], []
    for number, shape in enumerate(shapes):
        feeds[f"x{number}"] = source.normal(size=(rows, shape[0])).astype(np.float32)
        values = source.normal(size=shape).astype(np.float32)
        weights.append(helper.make_tensor(f"w{number}", TensorProto.FLOAT, shape, values.tobytes(), raw=True))
        nodes.append(helper.make_node("MatMul", [f"x{number}", f"w{number}"], [f"y{number}"]))
        # Only the products shall be measured: each returns a sum, so that results are not copied.
        nodes.append(helper.make_node("ReduceSum", [f"y{number}"], [f"s{number}"], keepdims=0))
    graph = helper.make_graph(
        nodes,
        "products",
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, value.shape)
            for name, value in feeds.items()
        ],
        [helper.make_tensor_value_info(f"s{number}", TensorProto.FLOAT, []) for number in range(len(shapes))],
        initializer=weights,
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return lambda: session.run(None, feeds), sum(2.0 * rows * a * b for a, b in shapes)


def _count_weights(hidden: int, layer: Layer) -> float:
    """Count the weights that a token is multiplied with."""
    attention, mlp = layer.attention, layer.mlp
    projections = hidden * attention.head_size * (2 * attention.heads + 2 * attention.kv_heads)
    if isinstance(mlp, Experts):
        return projections + 2 * hidden * mlp.intermediate * mlp.chosen
    return projections + hidden * mlp.intermediate * (3 if mlp.gated else 2)


def _measure_seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
