"""flash-attn-4, an optional package (extra `flash`), for long sequences on Hopper and Blackwell.

It computes what our own kernel does for forms without a window and without terms by position. Which of the two a batch
takes is settled once at start, by a timing on the card of both at a few lengths.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from embedserve_runtime.engines.torch.device_batch import DeviceBatch, copy_to_device
from embedserve_runtime.engines.torch.parameters import Parameters
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.model.architecture import Attention

log = logging.getLogger(__name__)

# Attention over one batch, from the fused QKV product: `fused.attention.FusedAttention` and `FlashAttention` here.
Attend = Callable[[Tensor, DeviceBatch], Tensor]

# Lengths of the timing, each in a batch of `TOKENS` tokens.
LENGTHS = (1024, 2048, 4096, 8192)
TOKENS = 16_384
# A share of our own kernel's time: a smaller gain is noise, and not worth to leave the CUDA graphs for.
MAX_SHARE = 0.95
# Of a row of attention to that of our own kernel, both in 16 bit.
MIN_COSINE = 0.9999
WARM_UPS, RUNS = 3, 10


@dataclass(frozen=True, slots=True)
class FlashTiming:
    """Milliseconds of both at one length, and the least cosine of their rows."""

    length: int
    ours: float
    flash: float
    cosine: float


def choose_flash_length(timings: Sequence[FlashTiming]) -> int | None:
    """Choose the shortest length from which on flash-attn-4 is faster at every longer one that was timed, None where it
    is not at the longest, or where its values are not ours."""
    if any(not timing.cosine >= MIN_COSINE for timing in timings):
        return None
    shortest = None
    for timing in sorted(timings, key=lambda timing: timing.length, reverse=True):
        if timing.flash > MAX_SHARE * timing.ours:
            break
        shortest = timing.length
    return shortest


class FlashAttention:
    """softmax(scale * q k^T) v over a batch that has `bounds`."""

    def __init__(self, attention: Attention) -> None:
        """Import flash-attn. Raises ImportError, or whatever else the package raises where it cannot run."""
        self._run: Callable[..., object] = import_module("flash_attn.cute").flash_attn_varlen_func
        self._form = attention

    def __call__(self, qkv: Tensor, batch: DeviceBatch) -> Tensor:
        """Compute attention, (tokens, heads * head_size). qkv: (tokens, (heads + 2 * kv_heads) * head_size)."""
        form, (tokens, _) = self._form, qkv.shape
        parts = qkv.view(tokens, -1, form.head_size)
        keys, values = form.heads, form.heads + form.kv_heads
        result = self._run(
            *(parts[:, :keys], parts[:, keys:values], parts[:, values:]),
            cu_seqlens_q=batch.bounds,
            cu_seqlens_k=batch.bounds,
            max_seqlen_q=batch.max_seqlen,
            max_seqlen_k=batch.max_seqlen,
            softmax_scale=form.scale,
            causal=form.causal,
        )
        attended = result[0] if isinstance(result, tuple) else result
        assert isinstance(attended, Tensor)
        return attended.reshape(tokens, -1)


def measure_flash_length(
    attention: Attention,
    ours: Attend,
    flash: Attend,
    parameters: Parameters,
    *,
    max_seqlen: int,
) -> int | None:
    """Time both on the card, at lengths up to `max_seqlen`, and decide."""
    device, dtype, timings = parameters.device, parameters.dtype, []
    for length in LENGTHS:
        if length > max_seqlen:
            break
        ids = np.zeros(length, dtype=np.int32)
        batch = copy_to_device(PackedBatch.pack([ids] * (TOKENS // length)), device)
        width = (attention.heads + 2 * attention.kv_heads) * attention.head_size
        qkv = torch.randn((batch.tokens, width), device=device, dtype=dtype)
        bounded = batch.with_bounds(length)
        reference, flashed = ours(qkv, batch), flash(qkv, bounded)
        cosine = float(functional.cosine_similarity(reference.float(), flashed.float(), dim=1).min())
        times = _measure_ms(ours, qkv, batch), _measure_ms(flash, qkv, bounded)
        timings.append(FlashTiming(length, *times, cosine))
    shortest = choose_flash_length(timings)
    log.info(
        "flash-attn-4 beside our attention",
        extra={"from": shortest, "timed": [str(timing) for timing in timings]},
    )
    return shortest


def _measure_ms(run: Attend, qkv: Tensor, batch: DeviceBatch) -> float:
    for _ in range(WARM_UPS):
        run(qkv, batch)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    for _ in range(RUNS):
        run(qkv, batch)
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / RUNS
