"""Tests on a CUDA device of large batches in two streams: the same numbers as in one, whatever is under way in
the other, and memory that does not grow with the number of graphs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from embedserve_runtime.engines.torch.device_batch import Capacity, DeviceBatch, copy_to_device
from embedserve_runtime.engines.torch.graphs import (
    MIN_CONCURRENT_BATCH_TOKENS,
    EncoderWithHeads,
    Graphs,
    OutputLevel,
    choose_buckets,
)
from embedserve_runtime.engines.torch.heads import HostLayer, PooledHead, TokenLayers
from embedserve_runtime.engines.torch.host_transfer import HostTransfer, PendingArray
from embedserve_runtime.engines.torch.parameters import Parameters
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.model.activations import Activation
from embedserve_runtime.model.architecture import Encoder
from embedserve_runtime.model.pipeline import Pooling
from tests.runtime.engines.test_forms import ATTENTION, LAYER, MAX_TOKENS, MLP, VOCABULARY, encoder_of
from tests.runtime.engines.test_torch_engine import saved

if not torch.cuda.is_available():
    pytest.skip("required a CUDA device", allow_module_level=True)

CUDA = torch.device("cuda", 0)
# Texts of a batch: some are for the second stream, some are not, and two are alike in size.
TEXTS = (300, 20, 400, 1, 900, 300, 5, 310)
BUCKET_TOKENS = 32_768


def encoder() -> Encoder:
    """Wide enough for a batch to be at work when the next one is there."""
    attention = replace(ATTENTION, heads=4, kv_heads=4, head_size=64, scale=0.125)
    layer = replace(LAYER, attention=attention, mlp=replace(MLP, intermediate=1024))
    return replace(encoder_of((layer,) * 6), hidden_size=256)


@pytest.fixture
def graphs(tmp_path: Path) -> partial[Graphs]:
    """Capture graphs of a head that pools means, and one that gives each token a number."""
    from embedserve_runtime.engines.torch.fused.encoder import FusedEncoder

    with torch.inference_mode():
        fused = FusedEncoder.build(encoder(), Parameters(saved(tmp_path, encoder()), CUDA, torch.bfloat16))
    head = PooledHead([Pooling.MEAN], [], CUDA)
    weight = np.random.default_rng(5).normal(size=(1, encoder().hidden_size)).astype(np.float32)
    token_head = TokenLayers([HostLayer(weight, None, Activation.IDENTITY)], CUDA)
    return partial(Graphs, EncoderWithHeads(fused, head, token_head), max_positions=MAX_TOKENS)


def batches() -> list[PackedBatch]:
    source = np.random.default_rng(3)
    return [
        PackedBatch.pack(
            [
                source.integers(0, VOCABULARY, length).astype(np.int32)
                for length in source.integers(20, MAX_TOKENS + 1, texts)
            ]
        )
        for texts in TEXTS
    ]


def start_copy(
    graphs: Graphs, head: TokenLayers, batch: PackedBatch, forward_output: OutputLevel
) -> PendingArray:
    """Its hidden states, the rows of its tokens or its own, on their way."""
    output = graphs(batch, forward_output)
    assert output is not None
    with output.on_stream():
        match forward_output:
            case OutputLevel.ROWS:
                return output.start_copy()
            case OutputLevel.TOKEN_ROWS:
                return output.start_token_copy(head)
            case OutputLevel.HIDDEN:
                return HostTransfer.start(output.states)


def in_turn(
    graphs: Graphs, head: TokenLayers, all_batches: list[PackedBatch], needed: list[OutputLevel], rounds: int
) -> Iterator[FloatArray]:
    """Run all batches so often, with three under way."""
    under_way: deque[PendingArray] = deque()
    for batch, forward_output in list(zip(all_batches, needed, strict=True)) * rounds:
        under_way.append(start_copy(graphs, head, batch, forward_output))
        if len(under_way) == 3:
            yield under_way.popleft().wait()
    while under_way:
        yield under_way.popleft().wait()


@pytest.mark.parametrize("max_concurrent_batch_tokens", [BUCKET_TOKENS, 2048])
@torch.inference_mode()
def test_two_streams_give_the_numbers_of_one_whatever_is_under_way(
    graphs: partial[Graphs], max_concurrent_batch_tokens: int
) -> None:
    all_batches = batches()
    assert sum(batch.tokens > MIN_CONCURRENT_BATCH_TOKENS for batch in all_batches) > len(all_batches) // 2
    among = choose_buckets(BUCKET_TOKENS)
    one_stream, two_streams = (
        graphs(among, min_concurrent_batch_tokens=BUCKET_TOKENS + 1),
        graphs(among, max_concurrent_batch_tokens=max_concurrent_batch_tokens),
    )
    assert one_stream.capacities == two_streams.capacities == among
    head = graphs.args[0].token_head
    # Of large batches no graph keeps hidden states.
    some_hidden = [OutputLevel.HIDDEN if batch.tokens < 8000 else OutputLevel.ROWS for batch in all_batches]
    for needed in (
        [OutputLevel.ROWS] * len(all_batches),
        [OutputLevel.TOKEN_ROWS] * len(all_batches),
        some_hidden,
    ):
        alone = [
            start_copy(one_stream, head, batch, forward_output).wait()
            for batch, forward_output in zip(all_batches, needed, strict=True)
        ]
        got = list(in_turn(two_streams, head, all_batches, needed, rounds=7))
        assert len(got) == 7 * len(all_batches)
        for number, array in enumerate(got):
            np.testing.assert_array_equal(array, alone[number % len(all_batches)])


@torch.inference_mode()
def test_a_large_batch_has_a_number_for_each_token_without_its_hidden_states(graphs: partial[Graphs]) -> None:
    (model,) = graphs.args
    head, batch = model.token_head, max(batches(), key=lambda each: each.tokens)
    graphs_of_head = graphs(choose_buckets(BUCKET_TOKENS))
    assert graphs_of_head(batch, OutputLevel.HIDDEN) is None
    got = start_copy(graphs_of_head, head, batch, OutputLevel.TOKEN_ROWS).wait()
    want = head(model.run(copy_to_device(batch, CUDA))).cpu().numpy()
    assert got.shape == (batch.tokens, 1)
    np.testing.assert_allclose(got, want, atol=1e-3 * np.abs(want).max())


@torch.inference_mode()
def test_graphs_of_all_sizes_take_little_more_memory_than_the_largest_alone(graphs: partial[Graphs]) -> None:
    def taken(among: Sequence[Capacity], min_concurrent_batch_tokens: int) -> int:
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        captured = graphs(among, min_concurrent_batch_tokens=min_concurrent_batch_tokens)
        assert captured.capacities == among
        return torch.cuda.memory_reserved() - before

    among, none = choose_buckets(BUCKET_TOKENS), BUCKET_TOKENS + 1
    graphs(among)
    of_largest = taken(among[-1:], none)
    of_all, of_both = taken(among, none), taken(among, MIN_CONCURRENT_BATCH_TOKENS)
    assert of_largest <= of_all <= 2 * of_largest
    assert of_all < of_both <= of_all + 2 * of_largest


@torch.inference_mode()
def test_what_takes_more_than_the_share_of_memory_has_no_graph(graphs: partial[Graphs]) -> None:
    """Graphs whose forward pass takes so much memory as to leave room for small ones alone."""
    (model,) = graphs.args
    share = torch.cuda.get_device_properties(CUDA).total_memory // 10

    def greedy(batch: DeviceBatch) -> torch.Tensor:
        # First: the library's workspace, which stays, must not come to lie in the memory taken here.
        hidden: torch.Tensor = model.run(batch)
        torch.empty(share * batch.tokens // 1000, dtype=torch.uint8, device=CUDA)
        return hidden

    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    captured = Graphs(
        EncoderWithHeads(greedy, model.head),
        choose_buckets(2000),
        MAX_TOKENS,
        min_concurrent_batch_tokens=512,
    )
    assert captured.capacities == tuple(bucket for bucket in choose_buckets(2000) if bucket.tokens < 1000)
    assert torch.cuda.memory_reserved() - before <= share
