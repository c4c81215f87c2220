"""The parts that every layer is made of, as nodes: products, norms, activations. Fused where that is faster."""

from __future__ import annotations

import numpy as np

from embedserve_runtime.engines.onnx.activations import FUSED_ACTIVATIONS
from embedserve_runtime.engines.onnx.nodes import GraphWriter
from embedserve_runtime.model.activations import Activation
from embedserve_runtime.model.architecture import Norm, NormKind
from embedserve_runtime.model.checkpoint import Weights


class Parts:
    """Writes parts into one graph, with one model's weights.

    has_attention_mask: whether batches will have tokens that attention does not see.
    """

    def __init__(self, graph: GraphWriter, weights: Weights, *, has_attention_mask: bool = False) -> None:
        self.graph = graph
        self.weights = weights
        self.has_attention_mask = has_attention_mask

    def add_parameter(self, name: str) -> str:
        """Add the parameter as an initializer of the same name."""
        return self.graph.add_constant(name, self.weights.read_float32(name))

    def write_product(self, value: str, names: list[str], bias: bool) -> str:
        """Write value W^T (+ b) with the weights of several products stacked: one wide product is faster than three."""
        stem = "+".join(names)
        weight = np.concatenate([self.weights.read_float32(f"{name}.weight") for name in names])
        transposed = self.graph.add_constant(f"{stem}.weight", weight.T)
        if not bias:
            return self.graph.add("MatMul", value, transposed)
        joined = np.concatenate([self.weights.read_float32(f"{name}.bias") for name in names])
        return self.graph.add("Gemm", value, transposed, self.graph.add_constant(f"{stem}.bias", joined))

    def write_norm(self, value: str, norm: Norm, name: str) -> str:
        """Normalize the last axis."""
        weight = self._add_norm_weight(norm, name)
        if norm.kind is NormKind.RMS:
            return self.graph.add("SimplifiedLayerNormalization", value, weight, axis=-1, epsilon=norm.eps)
        bias = [self.add_parameter(f"{name}.bias")] if norm.bias else []
        return self.graph.add("LayerNormalization", value, weight, *bias, axis=-1, epsilon=norm.eps)

    def add_and_norm(self, branch: str, residual: str, norm: Norm, name: str) -> tuple[str, str]:
        """Write (norm(residual + branch), residual + branch); the second is for layers that norm first.

        Two operators, since ONNX Runtime's fused ones for this take four times as long as both: only the norm alone
        is vectorized.
        """
        total = self.graph.add("Add", branch, residual)
        return self.write_norm(total, norm, name), total

    def write_activation(self, value: str, kind: Activation) -> str:
        return FUSED_ACTIVATIONS[kind](self.graph, value)

    def _add_norm_weight(self, norm: Norm, name: str) -> str:
        weight = self.weights.read_float32(f"{name}.weight")
        return self.graph.add_constant(
            f"{name}.weight", weight + np.float32(1) if norm.unit_offset else weight
        )
