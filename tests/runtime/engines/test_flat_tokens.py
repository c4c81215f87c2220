"""Sequences that lie end to end are sequences like any others."""

from __future__ import annotations

import numpy as np
import pytest

from embedserve_runtime.forward.batch import FlatTokens, PackedBatch, get_lengths

LISTS = [[1, 2, 3], [4], [5, 6], [7, 8, 9, 10]]
FLAT = FlatTokens.build(np.arange(1, 11, dtype=np.int32), np.array([3, 1, 2, 4], dtype=np.int32))


def test_iterating_gives_each_sequence() -> None:
    assert [ids.tolist() for ids in FLAT] == LISTS
    assert (len(FLAT), get_lengths(FLAT)) == (4, [3, 1, 2, 4])


@pytest.mark.parametrize("index", [0, 3, -1, -4])
def test_an_index_gives_one_sequence(index: int) -> None:
    assert FLAT[index].tolist() == LISTS[index]


@pytest.mark.parametrize("index", [4, -5])
def test_an_index_beyond_the_end_is_refused(index: int) -> None:
    with pytest.raises(IndexError):
        FLAT[index]


@pytest.mark.parametrize(
    "part", [slice(1, 3), slice(None), slice(2, None), slice(3, 1), slice(9, 12), slice(None, None, -1)]
)
def test_a_slice_gives_the_sequences_of_it(part: slice) -> None:
    assert [ids.tolist() for ids in FLAT[part]] == LISTS[part]


@pytest.mark.parametrize("part", [slice(None), slice(1, 3)])
def test_a_batch_of_them_is_that_of_a_list_of_them(part: slice) -> None:
    batch, want = PackedBatch.pack(FLAT[part]), PackedBatch.pack([*FLAT[part]])
    np.testing.assert_array_equal(batch.token_ids, want.token_ids)
    np.testing.assert_array_equal(batch.cu_seqlens, want.cu_seqlens)
