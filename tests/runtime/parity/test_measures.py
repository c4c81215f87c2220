"""The numbers by which a variant is judged, and the judgement."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest
from scipy import stats

from embedserve_runtime.config import ParitySettings
from embedserve_runtime.engines.base import FloatArray
from embedserve_runtime.parity.measures import (
    ModelOutputs,
    ParityReport,
    compare,
    compute_similarities,
    describe_shortfalls,
    is_out_of_reach,
    rank_correlation,
)

SOURCE = np.random.default_rng(0)


def numbers(*values: float) -> FloatArray:
    return np.array(values, dtype=np.float32)


def observed(vectors: FloatArray) -> ModelOutputs:
    return ModelOutputs(vectors)


@pytest.mark.parametrize("levels", [5, 1000], ids=["many equal numbers", "few"])
def test_rank_correlation_is_that_of_scipy(levels: int) -> None:
    one, other = SOURCE.integers(0, levels, size=(2, 300)).astype(np.float32)
    other = other + one
    assert rank_correlation(one, other) == pytest.approx(stats.spearmanr(one, other).statistic, abs=1e-12)


@pytest.mark.parametrize(
    ("one", "other", "want"),
    [
        pytest.param((1, 2, 3), (10, 20, 21), 1, id="the same order"),
        pytest.param((1, 2, 3), (3, 2, 1), -1, id="the other order"),
        pytest.param((1, 1, 1), (2, 2, 2), 1, id="neither varies"),
        pytest.param((1, 2, 3), (2, 2, 2), 0, id="one does not vary"),
    ],
)
def test_rank_correlation(one: tuple[float, ...], other: tuple[float, ...], want: float) -> None:
    assert rank_correlation(numbers(*one), numbers(*other)) == pytest.approx(want)


def test_similarities_are_those_of_each_pair_once() -> None:
    vectors = np.array([[1, 0], [0, 1], [2, 3]], dtype=np.float32)
    assert compute_similarities(vectors).tolist() == [0, 2, 3]


def test_equal_results_compare_as_equal() -> None:
    one = observed(SOURCE.normal(size=(9, 5)).astype(np.float32))
    assert list(astuple(compare(one, one))) == pytest.approx([1, 1, 0, 1])


def test_the_least_rank_agreement_of_all_labels_counts() -> None:
    vectors = np.eye(3, dtype=np.float32)
    one = ModelOutputs(vectors, np.array([[1, 1], [2, 2], [3, 3]], dtype=np.float32))
    other = ModelOutputs(vectors, np.array([[1, 3], [2, 2], [3, 1]], dtype=np.float32))
    assert compare(one, other).rank_agreement == pytest.approx(-1)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_results_that_are_not_finite_are_below_every_floor(value: float) -> None:
    reference = observed(np.eye(3, dtype=np.float32))
    found = ModelOutputs(np.full((3, 3), value, dtype=np.float32), np.eye(3, dtype=np.float32))
    floor = ParitySettings(min_mean_cosine=-0.5, min_cosine=-0.5, min_rank_agreement=-0.5)
    assert describe_shortfalls(compare(reference, found), floor).count("is below") == 3


@pytest.mark.parametrize(
    ("parity", "want"),
    [
        pytest.param(ParityReport(0.998, 0.99, 1.0, 0.99), "", id="at the floor"),
        pytest.param(
            ParityReport(0.9979, 0.99, 0.1, 0.99), "mean cosine 0.99790 is below 0.998", id="mean cosine"
        ),
        pytest.param(
            ParityReport(1.0, 0.98, 0.1, 1.0), "min cosine 0.98000 is below 0.99", id="least cosine"
        ),
        pytest.param(
            ParityReport(1.0, 0.9, 0.1, 0.5),
            "min cosine 0.90000 is below 0.99, rank agreement 0.50000 is below 0.99",
            id="several",
        ),
    ],
)
def test_what_is_below_the_default_floor_is_named(parity: ParityReport, want: str) -> None:
    assert describe_shortfalls(parity, ParitySettings()) == want


@pytest.mark.parametrize(
    ("found", "want"),
    [
        pytest.param([1.0, 0.999], False, id="nothing lost"),
        pytest.param([1.0, 0.98], True, id="one text below the least"),
        pytest.param([0.991, 0.991], False, id="a mean that the other texts can make good"),
        pytest.param([0.9905] * 3, True, id="a mean that they cannot"),
    ],
)
def test_a_variant_is_lost_when_no_other_text_could_save_it(found: list[float], want: bool) -> None:
    assert is_out_of_reach(np.array(found), 10, ParitySettings()) is want
