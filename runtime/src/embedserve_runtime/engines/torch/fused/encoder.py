"""An encoder for a GPU: few kernels a layer, nothing that waits for the host, so that a graph can hold it.

Computes what `modules.PackedEncoder` computes, from the same description and parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from embedserve_runtime.engines.torch.device_batch import DeviceBatch
from embedserve_runtime.engines.torch.fused.eight_bit_stack import build_eight_bit_stack
from embedserve_runtime.engines.torch.fused.self_attention import SharedTables
from embedserve_runtime.engines.torch.fused.sixteen_bit import (
    LayerParts16,
    build_post_norm_stack,
    build_pre_norm_stack,
)
from embedserve_runtime.engines.torch.fused.skinny_gemm import MAX_SKINNY_TOKENS
from embedserve_runtime.engines.torch.fused.skinny_layers import build_skinny_stack
from embedserve_runtime.engines.torch.fused.support import EightBit, can_run_skinny
from embedserve_runtime.engines.torch.parameters import Parameters
from embedserve_runtime.engines.torch.tables import EmbeddingTables
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.model.architecture import Encoder, NormPlacement

Stack = Callable[[DeviceBatch], Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class FusedEncoder:
    """Turns a batch into final hidden states (tokens, hidden), of the layout's tokens, in the dtype of the parameters.

    skinny: for at most MAX_SKINNY_TOKENS tokens, None where the layers have no such form.
    """

    layers: Stack
    skinny: Stack | None = None

    @classmethod
    def build(
        cls,
        encoder: Encoder,
        parameters: Parameters,
        *,
        eight_bit: EightBit | None = None,
        texts: PackedBatch | None = None,
        flash: bool = False,
    ) -> FusedEncoder:
        """Build the form that is fastest for the description.

        eight_bit: of the products, None for 16 bit. texts: what 8 bit is calibrated on. flash: batches that have bounds
        go through flash-attn-4, in the layers whose form it has.
        """
        tables = EmbeddingTables.load(encoder, parameters)
        shared = SharedTables(encoder, parameters, flash=flash)
        if eight_bit is not None:
            return cls(build_eight_bit_stack(encoder, shared, tables, eight_bit, texts))
        loaded = [
            LayerParts16.load(layer, parameters, shared, f"layers.{number}")
            for number, layer in enumerate(encoder.layers)
        ]
        final_norm = parameters.load_optional_norm(encoder.final_norm, "final_norm")
        if all(layer.placement is not NormPlacement.POST for layer in encoder.layers):
            return cls(build_pre_norm_stack(tables, loaded, final_norm))
        layers = build_post_norm_stack(tables, loaded, final_norm)
        if final_norm is not None or not all(map(can_run_skinny, encoder.layers)):
            return cls(layers)
        return cls(layers, build_skinny_stack(tables, loaded))

    def __call__(self, batch: DeviceBatch) -> Tensor:
        if self.skinny is not None and batch.tokens <= MAX_SKINNY_TOKENS:
            return self.skinny(batch)
        return self.layers(batch)
