"""The texts that go through flash-attn-4, and the arguments of its call: without the package and without a card."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from embedserve_runtime.engines.torch.device_batch import copy_to_device
from embedserve_runtime.engines.torch.fused.flash import FlashAttention, FlashTiming, choose_flash_length
from embedserve_runtime.engines.torch.fused.support import can_flash_run, find_flash_obstacle
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.model.architecture import Attention
from tests.runtime.engines.test_forms import ATTENTION, BUCKETS, LAYERS, encoder_of

PLAIN = replace(ATTENTION, heads=4, kv_heads=2, head_size=64, scale=0.125)


@pytest.mark.parametrize(
    ("flash", "cosine", "want"),
    [
        pytest.param([1.5, 0.8, 0.8, 0.8], 1.0, 2048, id="faster from one length on"),
        pytest.param([0.8, 0.8, 0.8, 0.8], 1.0, 1024, id="faster everywhere"),
        pytest.param([0.8, 1.1, 0.8, 0.8], 1.0, 4096, id="not before it stays faster"),
        pytest.param([0.8, 0.8, 0.8, 1.0], 1.0, None, id="slower at the longest"),
        pytest.param([0.97] * 4, 1.0, None, id="a gain within the noise"),
        pytest.param([0.5] * 4, 0.99, None, id="other values"),
        pytest.param([0.5] * 4, float("nan"), None, id="no numbers"),
        pytest.param([], 1.0, None, id="a model of short texts, nothing timed"),
    ],
)
def test_flash_is_taken_from_the_length_from_which_on_it_is_faster(
    flash: list[float], cosine: float, want: int | None
) -> None:
    timings = [FlashTiming(1024 << number, 1.0, time, cosine) for number, time in enumerate(flash)]
    assert choose_flash_length(timings) == choose_flash_length(timings[::-1]) == want


@pytest.mark.parametrize(
    ("attention", "want"),
    [
        pytest.param(PLAIN, True, id="plain"),
        pytest.param(replace(PLAIN, causal=True, head_size=128), True, id="causal"),
        pytest.param(replace(PLAIN, window=64), False, id="a window"),
        pytest.param(replace(PLAIN, distance_bias=BUCKETS), False, id="terms by position"),
        pytest.param(replace(PLAIN, head_size=48), False, id="another head size"),
    ],
)
def test_a_layer_takes_it_where_its_form_has_neither_window_nor_terms(
    attention: Attention, want: bool
) -> None:
    assert can_flash_run(attention) is want


def test_without_a_card_the_reason_is_told() -> None:
    encoder = encoder_of(LAYERS["causal"])
    assert (
        find_flash_obstacle(encoder, torch.device("cpu"), torch.bfloat16) == "the fused kernels are for CUDA"
    )


def by_hand(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float,
    causal: bool,
) -> tuple[Tensor, None]:
    """The call of flash-attn-4 as its documentation has it, sequence by sequence."""
    assert cu_seqlens_q is cu_seqlens_k
    assert max_seqlen_q == max_seqlen_k == int(cu_seqlens_q.diff().max())
    out = torch.empty_like(query)
    for start, end in pairwise(cu_seqlens_q.tolist()):
        queries, keys, values = (packed[start:end].transpose(0, 1) for packed in (query, key, value))
        attended = functional.scaled_dot_product_attention(
            queries, keys, values, is_causal=causal, scale=softmax_scale, enable_gqa=True
        )
        out[start:end] = attended.transpose(0, 1)
    return out, None


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
def test_its_call_gets_the_heads_of_the_joint_product_and_the_bounds_of_the_sequences(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = ModuleType("flash_attn.cute")
    vars(module)["flash_attn_varlen_func"] = by_hand
    monkeypatch.setitem(sys.modules, "flash_attn", ModuleType("flash_attn"))
    monkeypatch.setitem(sys.modules, "flash_attn.cute", module)
    lengths = (5, 1, 9)
    packed = PackedBatch.pack([np.zeros(length, dtype=np.int32) for length in lengths])
    batch = copy_to_device(packed, torch.device("cpu")).with_bounds(packed.max_seqlen)
    qkv = torch.randn((15, 8 * 64), generator=torch.Generator().manual_seed(0))
    got = FlashAttention(PLAIN)(qkv, batch)
    heads = qkv.view(15, 8, 64)
    rows = []
    for start, end in pairwise(packed.cu_seqlens.tolist()):
        query = heads[start:end, :4]
        key, value = (heads[start:end, at : at + 2].repeat_interleave(2, dim=1) for at in (4, 6))
        scores = torch.einsum("qhd,khd->hqk", query, key) * 0.125
        rows.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), value).flatten(1))
    torch.testing.assert_close(got, torch.cat(rows), atol=1e-5, rtol=0)
