"""Launches the kernel that runs all layers at once, for few tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from embedserve_runtime.engines.torch.device_batch import DeviceBatch
from embedserve_runtime.engines.torch.fused.kernels import stack
from embedserve_runtime.engines.torch.fused.operations import ACTIVATION_KINDS
from embedserve_runtime.engines.torch.parameters import Linear, Normalization
from embedserve_runtime.model.architecture import Attention, Encoder, Mlp


@dataclass(frozen=True, slots=True, eq=False)
class StackedLayer:
    """Products and norms of a layer with norms after. joint: queries, keys and values side by side."""

    joint: Linear
    output: Linear
    up: Linear
    down: Linear
    attention_norm: Normalization
    mlp_norm: Normalization


class LayerStack:
    """All layers of an encoder that `stack_runs` accepts: what the first norm is of, to final hidden states."""

    def __init__(self, encoder: Encoder, first_norm: Normalization, layers: Sequence[StackedLayer]) -> None:
        """layers: whose tensors stay where they are for as long as this lives."""
        description = encoder.layers[0]
        assert isinstance(description.mlp, Mlp)
        self._attention: Attention = description.attention
        self._mlp: Mlp = description.mlp
        self._hidden = encoder.hidden_size
        self._eps = first_norm.eps
        self._layers = tuple(layers)
        device = first_norm.weight.device
        norms = [first_norm, *(layer.mlp_norm for layer in layers)]
        rows = [_addresses(layer, norm) for layer, norm in zip(layers, norms, strict=False)]
        # Behind the last layer there is nothing but its norm.
        rows.append([*[0] * 8, *_of_norm(norms[-1]), 0, 0])
        self._addresses = torch.tensor(rows, dtype=torch.int64, device=device)
        self._arrived = torch.zeros(1, dtype=torch.int64, device=device)
        self._programs = 1
        if device.type == "cuda":
            self._programs = torch.cuda.get_device_properties(device).multi_processor_count

    def __call__(self, sums: Tensor, batch: DeviceBatch, dtype: torch.dtype) -> Tensor:
        """sums: float32 (tokens, hidden), overwritten. Gives (tokens, hidden) of `dtype`, that of the products."""
        attention, tokens = self._attention, len(sums)
        width = attention.heads * attention.head_size
        tiles = triton.cdiv(self._hidden, stack.SUM_COLUMNS.value)
        height = max(16, int(triton.next_power_of_2(tokens)))

        def scratch(columns: int) -> Tensor:
            return sums.new_empty((tokens, columns), dtype=dtype)

        out = scratch(self._hidden)
        kernel: Callable[..., object] = stack.run_layers[(self._programs,)]
        kernel(
            self._addresses,
            sums,
            torch.empty_like(sums),
            sums.new_empty((2, 2, tiles, height)),
            *(scratch(3 * width), scratch(width), scratch(self._mlp.intermediate), out),
            *(batch.starts, batch.ends, self._arrived),
            *(tokens, len(self._layers), attention.scale, self._eps),
            HIDDEN=self._hidden,
            HEADS=attention.heads,
            HEAD_SIZE=attention.head_size,
            INTERMEDIATE=self._mlp.intermediate,
            KIND=ACTIVATION_KINDS[self._mlp.activation],
            BLOCK_M=height,
            BLOCK_D=max(16, int(triton.next_power_of_2(attention.head_size))),
            BLOCK_TILES=int(triton.next_power_of_2(tiles)),
            PROGRAMS=self._programs,
            num_warps=8,
            # Programs that wait for each other must all be running.
            **({"launch_cooperative_grid": True} if self._programs > 1 else {}),
        )
        return out


def _addresses(layer: StackedLayer, first_norm: Normalization) -> list[int]:
    """In the order of the kernel's table."""
    products = (layer.joint, layer.output, layer.up, layer.down)
    return [
        *(address for product in products for address in _of_product(product)),
        *_of_norm(first_norm),
        *_of_norm(layer.attention_norm),
    ]


def _of_product(product: Linear) -> tuple[int, int]:
    assert product.bias is not None  # `stack_runs` says so
    return product.weight.data_ptr(), product.bias.data_ptr()


def _of_norm(norm: Normalization) -> tuple[int, int]:
    assert norm.bias is not None
    return norm.weight.data_ptr(), norm.bias.data_ptr()
