"""The numbers by which a variant is judged, and the judgement."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest
from scipy import stats

from embedserve_runtime.config import ParitySettings
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.parity.measures import (
    ComparedOutputs,
    ParityReport,
    compare,
    compute_similarities,
    describe_shortfalls,
    is_out_of_reach,
    rank_correlation,
    weight_cosines,
)

SOURCE = np.random.default_rng(0)


def numbers(*values: float) -> FloatArray:
    return np.array(values, dtype=np.float32)


def observed(vectors: FloatArray) -> ComparedOutputs:
    return ComparedOutputs(vectors)


@pytest.mark.parametrize("levels", [5, 1000], ids=["many equal numbers", "few"])
def test_rank_correlation_is_that_of_scipy(levels: int) -> None:
    first, second = SOURCE.integers(0, levels, size=(2, 300)).astype(np.float32)
    second = second + first
    assert rank_correlation(first, second) == pytest.approx(
        stats.spearmanr(first, second).statistic, abs=1e-12
    )


@pytest.mark.parametrize(
    ("first", "second", "want"),
    [
        pytest.param((1, 2, 3), (10, 20, 21), 1, id="the same order"),
        pytest.param((1, 2, 3), (3, 2, 1), -1, id="the other order"),
        pytest.param((1, 1, 1), (2, 2, 2), 1, id="neither varies"),
        pytest.param((1, 2, 3), (2, 2, 2), 0, id="one does not vary"),
    ],
)
def test_rank_correlation(first: tuple[float, ...], second: tuple[float, ...], want: float) -> None:
    assert rank_correlation(numbers(*first), numbers(*second)) == pytest.approx(want)


def test_similarities_are_those_of_each_pair_once() -> None:
    vectors = np.array([[1, 0], [0, 1], [2, 3]], dtype=np.float32)
    assert compute_similarities(vectors).tolist() == [0, 2, 3]


def test_equal_results_compare_as_equal() -> None:
    outputs = observed(SOURCE.normal(size=(9, 5)).astype(np.float32))
    assert list(astuple(compare(outputs, outputs))) == pytest.approx([1, 1, 0, 1])


def test_the_least_rank_agreement_of_all_labels_counts() -> None:
    vectors = np.eye(3, dtype=np.float32)
    first = ComparedOutputs(vectors, np.array([[1, 1], [2, 2], [3, 3]], dtype=np.float32))
    second = ComparedOutputs(vectors, np.array([[1, 3], [2, 2], [3, 1]], dtype=np.float32))
    assert compare(first, second).rank_agreement == pytest.approx(-1)


WEIGHTS = numbers(0, 1, 2), numbers(3, 1, 0), numbers(1, 1, 1), numbers(0, 2, 0)


def weighed(*rows: FloatArray) -> ComparedOutputs:
    return ComparedOutputs(np.eye(len(rows), dtype=np.float32), token_weights=np.stack(rows))


@pytest.mark.parametrize(
    ("last", "want"),
    [
        pytest.param(numbers(0, 2, 0), (1, 1, 0), id="equal"),
        pytest.param(numbers(0, 2.5, 0), (1, 1, 0.5), id="larger"),
        pytest.param(numbers(2, 2, 0), ((3 + 0.5**0.5) / 4, 0.5**0.5, 2), id="in another direction"),
        pytest.param(numbers(0, 0, 0), (0.75, 0, 2), id="lost"),
    ],
)
def test_token_weights_count_beside_vectors(last: FloatArray, want: tuple[float, float, float]) -> None:
    parity = compare(weighed(*WEIGHTS), weighed(*WEIGHTS[:-1], last))
    assert astuple(parity)[:3] == pytest.approx(want)


def test_the_order_of_products_and_of_hybrid_scores_counts_beside_that_of_vectors() -> None:
    vectors = np.eye(3, dtype=np.float32)
    first = ComparedOutputs(vectors, token_weights=np.array([[1, 0], [2, 1], [0, 3]], dtype=np.float32))
    second = ComparedOutputs(vectors, token_weights=np.array([[1, 2], [0, 1], [3, 3]], dtype=np.float32))
    scores = [
        compute_similarities(outputs.token_weights)
        for outputs in (first, second)
        if outputs.token_weights is not None
    ]
    want = stats.spearmanr(*scores).statistic
    assert compare(first, second).rank_agreement == pytest.approx(want)
    dense = np.array([[1, 0], [0.6, 0.8], [0, 1]], dtype=np.float32)
    turned = ComparedOutputs(dense[::-1].copy(), token_weights=first.token_weights)
    sums = [compute_similarities(outputs.vectors) + scores[0] for outputs in (ComparedOutputs(dense), turned)]
    got = compare(ComparedOutputs(dense, token_weights=first.token_weights), turned).rank_agreement
    dense_alone = stats.spearmanr(compute_similarities(dense), compute_similarities(turned.vectors)).statistic
    assert got == pytest.approx(min(dense_alone, stats.spearmanr(*sums).statistic))


def test_weights_that_add_next_to_nothing_are_not_compared() -> None:
    rows = np.stack([*WEIGHTS, numbers(0.01, 0, 0)])
    with_small_weights = np.stack([*WEIGHTS, numbers(0, 0.02, 0)])
    assert weight_cosines(rows, with_small_weights).tolist() == pytest.approx([1] * 5)
    assert weight_cosines(rows, np.stack([*WEIGHTS, numbers(0, 2, 0)]))[-1] == 0


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_results_that_are_not_finite_are_below_every_floor(value: float) -> None:
    reference = observed(np.eye(3, dtype=np.float32))
    outputs = ComparedOutputs(np.full((3, 3), value, dtype=np.float32), np.eye(3, dtype=np.float32))
    floor = ParitySettings(min_mean_cosine=-0.5, min_cosine=-0.5, min_rank_agreement=-0.5)
    assert describe_shortfalls(compare(reference, outputs), floor).count("is below") == 3


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
    ("cosines", "want"),
    [
        pytest.param([1.0, 0.999], False, id="nothing lost"),
        pytest.param([1.0, 0.98], True, id="one text below the least"),
        pytest.param([0.991, 0.991], False, id="a mean that the other texts can make good"),
        pytest.param([0.9905] * 3, True, id="a mean that they cannot"),
    ],
)
def test_a_variant_is_lost_when_no_other_text_could_save_it(cosines: list[float], want: bool) -> None:
    assert is_out_of_reach(np.array(cosines), 10, ParitySettings()) is want
