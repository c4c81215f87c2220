"""Layers of heads with their tensors: norm(activation(W x + b)), optionally with a residual connection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.heads.activations import activate
from embedserve_runtime.model.architecture import NormKind
from embedserve_runtime.model.heads.description import HeadLayer


@dataclass(frozen=True, slots=True, eq=False)
class HeadLayerWeights:
    """A layer and its arrays, float32: weight and residual (out, in); bias, norm_weight and norm_bias (out,).

    All but the weight may be None. residual: the projection of the input before it is added.
    """

    layer: HeadLayer
    weight: FloatArray
    bias: FloatArray | None
    norm_weight: FloatArray | None
    norm_bias: FloatArray | None
    residual: FloatArray | None = None

    @classmethod
    def load_all(
        cls, layers: Sequence[HeadLayer], tensors: Mapping[str, FloatArray], prefix: str = "head"
    ) -> tuple[HeadLayerWeights, ...]:
        """Load layers from `tensors`, whose names (see `model.heads.tensors`) begin with `prefix`."""
        return tuple(
            cls(
                layer,
                tensors[f"{prefix}.{number}.weight"],
                tensors.get(f"{prefix}.{number}.bias"),
                tensors.get(f"{prefix}.{number}.norm.weight"),
                tensors.get(f"{prefix}.{number}.norm.bias"),
                tensors.get(f"{prefix}.{number}.residual"),
            )
            for number, layer in enumerate(layers)
        )

    def __call__(self, values: FloatArray) -> FloatArray:
        """Map (rows, in) to (rows, out)."""
        product: FloatArray = values @ self.weight.T
        if self.bias is not None:
            product += self.bias
        outputs = self._normalize(activate(product, self.layer.activation))
        if not self.layer.residual:
            return outputs
        added: FloatArray = outputs + (values if self.residual is None else values @ self.residual.T)
        return added

    def _normalize(self, values: FloatArray) -> FloatArray:
        norm = self.layer.norm
        if norm is None or self.norm_weight is None:
            return values
        if norm.kind is NormKind.LAYER:
            values = values - values.mean(axis=-1, keepdims=True)
        scale = np.sqrt(np.mean(values * values, axis=-1, keepdims=True) + np.float32(norm.eps))
        normalized: FloatArray = values / scale * self.norm_weight
        return normalized if self.norm_bias is None else normalized + self.norm_bias


def apply_layers(layers: Iterable[HeadLayerWeights], values: FloatArray) -> FloatArray:
    """Apply the layers one after another."""
    for layer in layers:
        values = layer(values)
    return values
