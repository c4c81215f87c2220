"""Measures at start from which text length on flash-attn-4 is faster than our own attention."""

from __future__ import annotations

import logging

from embedserve_runtime.engines.torch.fused.support import can_flash_run, find_flash_obstacle
from embedserve_runtime.engines.torch.kernels import KernelKind
from embedserve_runtime.engines.torch.parameters import Parameters
from embedserve_runtime.model.architecture import Encoder

log = logging.getLogger(__name__)


def decide_flash_length(encoder: Encoder, parameters: Parameters, requested: KernelKind | None) -> int | None:
    """Decide the length from which flash-attn runs; None for never. requested: `flash` takes it for every batch,
    `fused` for none, None what is faster on the card."""
    if requested is KernelKind.FLASH:
        return 1
    if requested is not None or find_flash_obstacle(encoder, parameters.device, parameters.dtype) is not None:
        return None
    # Imported here: they need Triton.
    from embedserve_runtime.engines.torch.fused.attention import FusedAttention, PositionBias
    from embedserve_runtime.engines.torch.fused.flash import FlashAttention, measure_flash_length

    form = next(layer.attention for layer in encoder.layers if can_flash_run(layer.attention))
    ours = FusedAttention(form, parameters, PositionBias(encoder.max_positions))
    try:
        flash = FlashAttention(form)
        return measure_flash_length(form, ours, flash, parameters, max_seqlen=encoder.max_positions)
    # It compiles for the card that it finds, and may raise anything there; our own kernel runs without it.
    except Exception as error:  # noqa: BLE001
        log.warning("flash-attn-4 cannot run here", extra={"error": f"{type(error).__name__}: {error}"})
        return None
