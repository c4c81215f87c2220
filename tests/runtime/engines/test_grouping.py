from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.grouping import (
    GROUP_OVERHEAD_FLOPS,
    MAX_GROUP_TOKENS,
    EqualGroups,
    group,
    group_sizes,
)

HIDDEN = 384

lengths_of_a_batch = st.lists(st.integers(min_value=1, max_value=600), min_size=1, max_size=60)


def batch_of(lengths: list[int]) -> PackedBatch:
    return PackedBatch.pack([np.arange(length, dtype=np.int32) for length in lengths])


@given(lengths_of_a_batch)
def test_every_token_has_one_padded_position_and_comes_back_to_its_row(lengths: list[int]) -> None:
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
    [([128] * 32, [32]), ([250, 250, 5], [2, 1]), ([16, 15, 14], [3]), ([7], [1])],
    ids=["equal lengths share one group", "a short one leaves", "close lengths share", "one alone"],
)
def test_cutting_into_groups(lengths: list[int], want_sizes: list[int]) -> None:
    assert group_sizes(np.array(lengths, dtype=np.int32), HIDDEN) == want_sizes


@given(lengths_of_a_batch)
def test_equal_groups_follow_each_other_and_hold_every_token_of_one_length_each(lengths: list[int]) -> None:
    ordered = np.array(sorted(lengths), dtype=np.int32)
    groups = EqualGroups.build(ordered)
    counts, runs = groups.shapes[:, 0], groups.shapes[:, 1]
    np.testing.assert_array_equal(np.repeat(runs, counts), ordered)
    np.testing.assert_array_equal((groups.ends - groups.starts)[:, 0], counts * runs)
    np.testing.assert_array_equal(groups.starts[1:], groups.ends[:-1])
    assert ((counts * runs <= MAX_GROUP_TOKENS) | (counts == 1)).all()


@pytest.mark.parametrize(
    ("lengths", "want"),
    [
        ([9, 9, 4], [(2, 9), (1, 4)]),
        ([4, 9, 4], [(1, 4), (1, 9), (1, 4)]),
        ([128] * 6, [(3, 128), (3, 128)]),
        ([600, 600], [(1, 600), (1, 600)]),
    ],
    ids=["one group a length", "only neighbours", "cut into like parts", "one sequence may have more"],
)
def test_cutting_into_equal_groups(lengths: list[int], want: list[tuple[int, int]]) -> None:
    shapes = EqualGroups.build(np.array(lengths, dtype=np.int32)).shapes
    assert [tuple(row) for row in shapes[:, :2].tolist()] == want
