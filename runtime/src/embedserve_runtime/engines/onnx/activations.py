"""Activations as nodes: by ONNX Runtime's own operators where these are faster, or by ONNX's alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from embedserve_runtime.engines.onnx.nodes import FUSED, GraphWriter
from embedserve_runtime.model.activations import Activation

# Writes an activation of a value into a graph, and gives the name of the result.
WriteActivation = Callable[[GraphWriter, str], str]


def _identity(_: GraphWriter, value: str) -> str:
    return value


def _silu(graph: GraphWriter, value: str) -> str:
    return graph.add("Mul", value, graph.add("Sigmoid", value))


def _write_node(operator: str, **attributes: Any) -> WriteActivation:
    return lambda graph, value: graph.add(operator, value, **attributes)


STANDARD_ACTIVATIONS: Mapping[Activation, WriteActivation] = {
    Activation.IDENTITY: _identity,
    Activation.TANH: _write_node("Tanh"),
    Activation.RELU: _write_node("Relu"),
    Activation.SIGMOID: _write_node("Sigmoid"),
    Activation.SILU: _silu,
    Activation.GELU: _write_node("Gelu"),
    Activation.GELU_TANH: _write_node("Gelu", approximate="tanh"),
}
FUSED_ACTIVATIONS: Mapping[Activation, WriteActivation] = {
    **STANDARD_ACTIVATIONS,
    Activation.SILU: _write_node("QuickGelu", domain=FUSED, alpha=1.0),
    Activation.GELU: _write_node("Gelu", domain=FUSED),
    Activation.GELU_TANH: _write_node("FastGelu", domain=FUSED),
}
