"""Observes how large the numbers are that the products of each layer read, on a batch of texts.

A few channels behind a norm are many times as large as the others in every text; which they are, only a forward pass
shows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from embedserve_runtime.engines.torch.kernels import KernelKind
from embedserve_runtime.engines.torch.modules import PackedEncoder
from embedserve_runtime.engines.torch.packing import PackedTokens
from embedserve_runtime.engines.torch.parameters import Parameters
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.model.architecture import Encoder


@dataclass(slots=True, eq=False)
class LayerRanges:
    """The largest magnitude of every channel, float32 (hidden,), of what the product of queries, keys and values reads,
    and of what the up product reads."""

    attention: Tensor
    mlp: Tensor

    @classmethod
    def empty(cls, hidden_size: int, device: torch.device) -> LayerRanges:
        return cls(*(torch.zeros(hidden_size, device=device) for _ in range(2)))

    def observe_attention_input(self, rows: Tensor) -> None:
        self.attention = _widen(self.attention, rows)

    def observe_mlp_input(self, rows: Tensor) -> None:
        self.mlp = _widen(self.mlp, rows)


def observe_ranges(encoder: Encoder, parameters: Parameters, batch: PackedBatch) -> list[LayerRanges]:
    """Run one forward pass in the dtype of the parameters, with one layer in memory at a time; a value a layer."""
    ranges = [LayerRanges.empty(encoder.hidden_size, parameters.device) for _ in encoder.layers]
    width = max(layer.attention.heads * layer.attention.head_size for layer in encoder.layers)
    tokens = PackedTokens.copy_to_device(batch, parameters.device, width)
    PackedEncoder(encoder, parameters, KernelKind.GROUPED, streamed=True).run(tokens, ranges)
    return ranges


def _widen(peaks: Tensor, rows: Tensor) -> Tensor:
    return torch.maximum(peaks, rows.abs().amax(dim=0).float())
