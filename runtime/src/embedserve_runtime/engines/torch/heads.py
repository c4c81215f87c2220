"""Heads on the device: packed hidden states to pooled rows, logits or weights of vocabulary entries.

Only what these give leaves the device. Pooling sums in float32; dense modules and classifiers run in float32; the
masked-LM head, whose product is the size of the encoder, in the encoder's dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from embedserve_runtime.engines.torch.activations import ACTIVATIONS
from embedserve_runtime.engines.torch.device_batch import DeviceBatch
from embedserve_runtime.engines.torch.parameters import Normalization
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.model.activations import Activation
from embedserve_runtime.model.architecture import Norm
from embedserve_runtime.model.heads.description import SparseHead, SparsePooling
from embedserve_runtime.model.pipeline import Pooling


class RowHead(Protocol):
    """Hidden states (tokens, hidden) to one row a sequence, float32, (sequences, columns), without waiting."""

    def __call__(self, hidden: Tensor, batch: DeviceBatch) -> Tensor: ...


class TokenRowHead(Protocol):
    """Hidden states (tokens, hidden) to a row of few columns for each token, float32, without waiting."""

    def __call__(self, hidden: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True, eq=False)
class HostLayer:
    """A layer's arrays on the host: norm(activation(W x + b)), and where `adds_input` + x, or + R x by `residual`."""

    weight: FloatArray
    bias: FloatArray | None
    activation: Activation
    norm: Norm | None = None
    norm_weight: FloatArray | None = None
    norm_bias: FloatArray | None = None
    adds_input: bool = False
    residual: FloatArray | None = None


@dataclass(frozen=True, slots=True, eq=False)
class DeviceLayer:
    """A layer's tensors on the device."""

    weight: Tensor
    bias: Tensor | None
    activation: Activation
    norm: Normalization | None
    adds_input: bool
    residual: Tensor | None

    @classmethod
    def copy_to_device(cls, layer: HostLayer, device: torch.device, dtype: torch.dtype) -> DeviceLayer:
        norm: Normalization | None = None
        if layer.norm is not None and layer.norm_weight is not None:
            bias = None if layer.norm_bias is None else torch.tensor(layer.norm_bias, device=device)
            weight = torch.tensor(layer.norm_weight, device=device)
            norm = Normalization(layer.norm.kind, layer.norm.eps, weight, bias)

        def move(array: FloatArray | None) -> Tensor | None:
            return None if array is None else torch.tensor(array, device=device, dtype=dtype)

        return cls(
            weight=torch.tensor(layer.weight, device=device, dtype=dtype),
            bias=move(layer.bias),
            activation=layer.activation,
            norm=norm,
            adds_input=layer.adds_input,
            residual=move(layer.residual),
        )

    def __call__(self, values: Tensor) -> Tensor:
        """Apply the layer, (rows, in) to (rows, out)."""
        result = ACTIVATIONS[self.activation](functional.linear(values, self.weight, self.bias))
        if self.norm is not None:
            result = self.norm(result)
        if not self.adds_input:
            return result
        return result + (values if self.residual is None else functional.linear(values, self.residual))


class PooledHead:
    """Poolings side by side, then layers: dense vectors, or a classifier's logits."""

    def __init__(
        self, poolings: Sequence[Pooling], layers: Sequence[HostLayer], device: torch.device
    ) -> None:
        self._poolings = tuple(poolings)
        self._layers = [DeviceLayer.copy_to_device(layer, device, torch.float32) for layer in layers]

    def __call__(self, hidden: Tensor, batch: DeviceBatch) -> Tensor:
        # Imported here: Triton is installed only with CUDA.
        from embedserve_runtime.engines.torch.fused.operations import pool

        width = hidden.shape[1]
        rows = hidden.new_empty((batch.sequences, width * len(self._poolings)), dtype=torch.float32)
        for number, pooling in enumerate(self._poolings):
            pool(hidden, batch, pooling, rows, number * width)
        for layer in self._layers:
            rows = layer(rows)
        return rows


class ConcatenatedHead:
    """The columns of several heads, one after the other; who reads the rows takes those that count."""

    def __init__(self, heads: Sequence[RowHead]) -> None:
        self._heads = tuple(heads)

    def __call__(self, hidden: Tensor, batch: DeviceBatch) -> Tensor:
        return torch.cat([head(hidden, batch) for head in self._heads], dim=1)


class TokenLayers:
    """Layers on every token, float32: (tokens, hidden) to (tokens, out features).

    normalize_from: rows are scaled to L2 norm 1, shorter ones divided by this; None leaves them.
    """

    def __init__(
        self, layers: Sequence[HostLayer], device: torch.device, *, normalize_from: float | None = None
    ) -> None:
        self._layers = [DeviceLayer.copy_to_device(layer, device, torch.float32) for layer in layers]
        self._normalize_from = normalize_from

    def __call__(self, hidden: Tensor) -> Tensor:
        values = hidden.float()
        for layer in self._layers:
            values = layer(values)
        if self._normalize_from is None:
            return values
        return functional.normalize(values, dim=1, eps=self._normalize_from)


class VocabularyHead:
    """SPLADE: log(1 + max(0, logit)) pooled over the tokens, (sequences, vocabulary), without the logits of all
    tokens at once: the last product pools each of its tiles."""

    def __init__(
        self, head: SparseHead, layers: Sequence[HostLayer], device: torch.device, dtype: torch.dtype
    ) -> None:
        *before, last = layers
        self._layers = [DeviceLayer.copy_to_device(layer, device, dtype) for layer in before]
        self._last = DeviceLayer.copy_to_device(last, device, dtype)
        self._head = head

    def __call__(self, hidden: Tensor, batch: DeviceBatch) -> Tensor:
        from embedserve_runtime.engines.torch.fused.operations import pool_vocabulary_logits

        hidden = hidden.to(self._last.weight.dtype)
        for layer in self._layers:
            hidden = layer(hidden)
        weight, bias = self._last.weight, self._last.bias
        if self._head.pooling is SparsePooling.SUM:
            return pool_vocabulary_logits(hidden, weight, bias, batch, logs=2 if self._head.log_twice else 1)
        rows = pool_vocabulary_logits(hidden, weight, bias, batch, logs=0).log1p_()
        return rows.log1p_() if self._head.log_twice else rows
