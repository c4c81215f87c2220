"""The layers of a head with their tensors: norm(activation(W x + b)), perhaps with a residual."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from embedserve_runtime.engines.base import FloatArray
from embedserve_runtime.heads.activations import activate
from embedserve_runtime.model.architecture import NormKind
from embedserve_runtime.model.heads.description import HeadLayer


@dataclass(frozen=True, slots=True, eq=False)
class LoadedLayer:
    """A layer and its arrays, float32: weight and residual (out, in); bias, norm_weight and norm_bias (out,).

    All but the weight may be None. residual: what the input is put through before it is added.
    """

    layer: HeadLayer
    weight: FloatArray
    bias: FloatArray | None
    norm_weight: FloatArray | None
    norm_bias: FloatArray | None
    residual: FloatArray | None = None

    @classmethod
    def all_of(
        cls, layers: Sequence[HeadLayer], tensors: Mapping[str, FloatArray], of: str = "head"
    ) -> tuple[LoadedLayer, ...]:
        """tensors: by the names of `model.heads.tensors`, which begin with `of`."""
        return tuple(
            cls(
                layer,
                tensors[f"{of}.{number}.weight"],
                tensors.get(f"{of}.{number}.bias"),
                tensors.get(f"{of}.{number}.norm.weight"),
                tensors.get(f"{of}.{number}.norm.bias"),
                tensors.get(f"{of}.{number}.residual"),
            )
            for number, layer in enumerate(layers)
        )

    def __call__(self, values: FloatArray) -> FloatArray:
        """(rows, in) to (rows, out)."""
        product: FloatArray = values @ self.weight.T
        if self.bias is not None:
            product += self.bias
        made = self._normalize(activate(product, self.layer.activation))
        if not self.layer.residual:
            return made
        added: FloatArray = made + (values if self.residual is None else values @ self.residual.T)
        return added

    def _normalize(self, values: FloatArray) -> FloatArray:
        norm = self.layer.norm
        if norm is None or self.norm_weight is None:
            return values
        if norm.kind is NormKind.LAYER:
            values = values - values.mean(axis=-1, keepdims=True)
        scale = np.sqrt(np.mean(values * values, axis=-1, keepdims=True) + np.float32(norm.eps))
        normed: FloatArray = values / scale * self.norm_weight
        return normed if self.norm_bias is None else normed + self.norm_bias


def run(layers: Iterable[LoadedLayer], values: FloatArray) -> FloatArray:
    """One layer after the other."""
    for layer in layers:
        values = layer(values)
    return values
