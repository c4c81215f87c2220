"""The texts that are tried."""

from __future__ import annotations

from itertools import pairwise

import pytest

from embedserve_runtime.parity.corpus import (
    MIN_TEXTS,
    choose_evenly,
    read_calibration_texts,
    read_parity_texts,
)


def test_the_corpus_has_other_texts_than_the_calibration_and_many_lengths() -> None:
    parity, calibration = read_parity_texts(), read_calibration_texts()
    assert len(parity) == len(set(parity)) == 128
    assert not set(parity) & set(calibration)
    lengths = [len(text.split()) for text in parity]
    assert (min(lengths), max(lengths) > 100) == (1, True)


@pytest.mark.parametrize(
    ("tokens", "want_texts"),
    [
        pytest.param(5050, 100, id="all of them"),
        pytest.param(2600, 52, id="half of them"),
        pytest.param(10, MIN_TEXTS, id="never fewer"),
    ],
)
def test_texts_are_left_out_evenly_over_their_lengths(tokens: int, want_texts: int) -> None:
    lengths = [*range(100, 0, -1)]
    numbers = choose_evenly(lengths, tokens)
    assert len(numbers) == want_texts
    chosen = [lengths[number] for number in numbers]
    assert chosen == sorted(chosen)
    gaps = {after - before for before, after in pairwise(chosen)}
    assert max(gaps) - min(gaps) <= 1


def test_a_corpus_of_few_texts_is_taken_whole() -> None:
    assert choose_evenly([3, 1, 2], 1) == [1, 2, 0]
