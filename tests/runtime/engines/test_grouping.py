from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedserve_runtime.engines.base import PackedBatch
from embedserve_runtime.engines.grouping import GROUP_OVERHEAD_FLOPS, group, group_sizes

HIDDEN = 384

lengths_of_a_batch = st.lists(st.integers(min_value=1, max_value=600), min_size=1, max_size=60)


def batch_of(lengths: list[int]) -> PackedBatch:
    return PackedBatch.pack([np.arange(length, dtype=np.int32) for length in lengths])


@given(lengths_of_a_batch)
def test_every_token_has_one_padded_position_and_comes_back_to_its_place(lengths: list[int]) -> None:
    batch = batch_of(lengths)
    groups = group(batch, HIDDEN)
    assert len(set(groups.unpad.tolist())) == batch.tokens
    np.testing.assert_array_equal(groups.rows[groups.unpad], np.arange(batch.tokens))


@given(lengths_of_a_batch)
def test_each_block_holds_whole_sequences_of_which_the_first_real_tokens_are_in_order(
    lengths: list[int],
) -> None:
    batch = batch_of(lengths)
    groups = group(batch, HIDDEN)
    sequences = []
    for number, (count, width) in enumerate(groups.shapes):
        block = groups.rows[groups.row_starts[number] : groups.row_starts[number + 1]].reshape(count, width)
        real = groups.lengths[groups.length_starts[number] : groups.length_starts[number + 1]]
        sequences += [tuple(row[:length].tolist()) for row, length in zip(block, real, strict=True)]
    starts = batch.cu_seqlens
    want = [tuple(range(starts[index], starts[index + 1])) for index in range(len(lengths))]
    assert sorted(sequences) == want


@given(lengths_of_a_batch)
def test_no_group_wastes_more_on_padding_than_a_group_of_its_own_would_cost(lengths: list[int]) -> None:
    ordered = np.array(sorted(lengths, reverse=True), dtype=np.int32)
    start = 0
    for size in group_sizes(ordered, HIDDEN):
        run = ordered[start : start + size].astype(float)
        assert (4 * HIDDEN * (run[0] ** 2 - run**2)).sum() <= GROUP_OVERHEAD_FLOPS
        start += size
    assert start == len(lengths)


@pytest.mark.parametrize(
    ("lengths", "want_sizes"),
    [([10] * 5, [2, 2, 1]), ([20, 20, 3], [1, 1, 1]), ([7] * 4, [4]), ([14, 10, 10], [1, 2])],
    ids=["two at a time", "too long for any company", "all together", "the longest of a run counts"],
)
def test_a_run_has_no_more_scores_than_allowed(lengths: list[int], want_sizes: list[int]) -> None:
    assert group_sizes(np.array(lengths, dtype=np.int32), HIDDEN, most_pairs=200) == want_sizes


@pytest.mark.parametrize(
    ("lengths", "want_sizes"),
    [([128] * 32, [32]), ([250, 250, 5], [2, 1]), ([16, 15, 14], [3]), ([7], [1])],
    ids=["equal lengths share one group", "a short one leaves", "close lengths share", "one alone"],
)
def test_cutting_into_groups(lengths: list[int], want_sizes: list[int]) -> None:
    assert group_sizes(np.array(lengths, dtype=np.int32), HIDDEN) == want_sizes
