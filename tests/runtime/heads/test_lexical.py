"""Lexical weights of token ids, apart from the encoder that gives them."""

from __future__ import annotations

import numpy as np
import pytest

from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.heads.token_heads import LoadedLexicalHead
from embedserve_runtime.model.heads.description import LexicalHead

DROPPED = (0, 2)
Pairs = list[tuple[int, float]]

# Token ids and weights of each sequence, and what is left of them.
BATCHES: dict[str, tuple[list[Pairs], list[Pairs]]] = {
    "the largest of an id in its own sequence": (
        [[(0, 9.0), (7, 1.0), (5, 3.0), (7, 2.0), (2, 9.0)], [(7, 0.5), (5, 4.0)]],
        [[(5, 3.0), (7, 2.0)], [(5, 4.0), (7, 0.5)]],
    ),
    "nothing of a sequence, between others": (
        [[(8, 1.0)], [(0, 1.0), (2, 1.0)], [(9, -1.0)], [(8, 2.0)]],
        [[(8, 1.0)], [], [], [(8, 2.0)]],
    ),
    "nothing at all": ([[(0, 1.0)], [(2, 1.0)]], [[], []]),
    "what is no number": ([[(4, float("nan")), (3, 1.0)]], [[(3, 1.0), (4, float("nan"))]]),
}


@pytest.mark.parametrize(("texts", "want"), BATCHES.values(), ids=BATCHES)
def test_of_each_token_id_the_largest_weight_above_0_is_kept(texts: list[Pairs], want: list[Pairs]) -> None:
    batch = PackedBatch.pack([np.array([token for token, _ in pairs], dtype=np.int32) for pairs in texts])
    weights = np.array([weight for pairs in texts for _, weight in pairs], dtype=np.float32)[:, None]
    rows = LoadedLexicalHead(LexicalHead((), DROPPED, vocabulary=10), ())(weights, batch)
    assert [row.indices.tolist() for row in rows] == [[token for token, _ in pairs] for pairs in want]
    for row, pairs in zip(rows, want, strict=True):
        assert row.indices.dtype == np.int32
        assert np.array_equal(
            row.values, np.array([weight for _, weight in pairs], np.float32), equal_nan=True
        )
