"""The parts that every layer is made of, as nodes: products, norms, activations. Fused where ONNX Runtime fuses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from embedserve_runtime.engines.onnx.nodes import FUSED, GraphWriter
from embedserve_runtime.model.architecture import Activation, Norm, NormKind
from embedserve_runtime.model.checkpoint import Weights


@dataclass(frozen=True, slots=True)
class Pending:
    """A branch's output before it is added to the residual; `bias` is the initialiser still to be added to it."""

    value: str
    bias: str | None


class Parts:
    """Writes parts into one graph, with one model's weights."""

    def __init__(self, graph: GraphWriter, weights: Weights) -> None:
        self.graph = graph
        self.weights = weights

    def parameter(self, name: str) -> str:
        """The parameter as an initialiser of the same name."""
        return self.graph.constant(name, self.weights.float32(name))

    def product(self, value: str, names: list[str], bias: bool) -> str:
        """value W^T (+ b) with the weights of several products stacked: one wide product is faster than three."""
        stem = "+".join(names)
        weight = np.concatenate([self.weights.float32(f"{name}.weight") for name in names])
        transposed = self.graph.constant(f"{stem}.weight", weight.T)
        if not bias:
            return self.graph.add("MatMul", value, transposed)
        joined = np.concatenate([self.weights.float32(f"{name}.bias") for name in names])
        return self.graph.add("Gemm", value, transposed, self.graph.constant(f"{stem}.bias", joined))

    def pending_product(self, value: str, name: str, bias: bool) -> Pending:
        """value W^T, its bias left to whoever adds the residual."""
        weight = self.graph.constant(f"{name}.weight", self.weights.float32(f"{name}.weight").T)
        return Pending(
            self.graph.add("MatMul", value, weight), self.parameter(f"{name}.bias") if bias else None
        )

    def settled(self, pending: Pending) -> str:
        """The branch's output with its bias."""
        return self.graph.add("Add", pending.value, pending.bias) if pending.bias else pending.value

    def norm(self, value: str, norm: Norm, name: str) -> str:
        """Normalise the last axis."""
        weight = self._norm_weight(norm, name)
        if norm.kind is NormKind.RMS:
            return self.graph.add("SimplifiedLayerNormalization", value, weight, axis=-1, epsilon=norm.eps)
        bias = [self.parameter(f"{name}.bias")] if norm.bias else []
        return self.graph.add("LayerNormalization", value, weight, *bias, axis=-1, epsilon=norm.eps)

    def add_and_norm(self, pending: Pending, residual: str, norm: Norm, name: str) -> tuple[str, str]:
        """(norm(residual + branch), residual + branch); the second is for layers that norm first."""
        weight = self._norm_weight(norm, name)
        if norm.kind is NormKind.RMS:
            operator, inputs = "SkipSimplifiedLayerNormalization", [pending.value, residual, weight]
        else:
            beta = self.parameter(f"{name}.bias") if norm.bias else ""
            operator, inputs = "SkipLayerNormalization", [pending.value, residual, weight, beta]
        if pending.bias is not None:
            inputs.append(pending.bias)
        normed, _, _, total = self.graph.add_many(
            operator, *inputs, outputs=4, domain=FUSED, unused=(1, 2), epsilon=norm.eps
        )
        return normed, total

    def add(self, pending: Pending, residual: str) -> str:
        return self.graph.add("Add", self.settled(pending), residual)

    def activation(self, value: str, kind: Activation) -> str:
        match kind:
            case Activation.GELU:
                return self.graph.add("Gelu", value, domain=FUSED)
            case Activation.GELU_TANH:
                return self.graph.add("FastGelu", value, domain=FUSED)
            case Activation.RELU:
                return self.graph.add("Relu", value)
            case Activation.SILU:
                return self.graph.add("QuickGelu", value, domain=FUSED, alpha=1.0)
            case Activation.TANH:
                return self.graph.add("Tanh", value)

    def _norm_weight(self, norm: Norm, name: str) -> str:
        weight = self.weights.float32(f"{name}.weight")
        return self.graph.constant(f"{name}.weight", weight + np.float32(1) if norm.unit_offset else weight)
