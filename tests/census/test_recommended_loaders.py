"""Every kind of repository that is served, against the loader that its authors recommend, with transformers 4: files as
they were then, on both engines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.census.built import Built, greatest_difference
from tests.census.kinds import open_runners
from tests.census.outside import Comparison, Pair, list_pairs, prepare, read_results
from tests.oracles.outside import CENSUS_SCRIPT, answers, needs_oracles
from tests.support.tolerances import FP32_MAX_ABS_DIFF

pytestmark = needs_oracles

PAIRS = [pair for pair in list_pairs() if pair.runs_outside]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Mapping[Pair, tuple[Built, Any]]:
    """The folder and the loader's answer of each pair whose kind is served, from one process."""
    home = tmp_path_factory.mktemp("census")
    found = {pair: prepare(pair, home / str(number)) for number, pair in enumerate(PAIRS)}
    served: dict[Pair, Comparison] = {pair: one for pair, one in found.items() if one is not None}
    said = answers([one.ask for one in served.values()], CENSUS_SCRIPT)
    return {pair: (one.built, answer) for (pair, one), answer in zip(served.items(), said, strict=True)}


def measure(built: Built, answer: Mapping[str, Any]) -> float:
    """The greatest difference of both engines from the loader."""
    assert built.results is not None
    theirs = read_results(answer)
    return max(greatest_difference(built.results(runner), theirs) for runner in open_runners(built))


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if not pair.reason], ids=str)
def test_what_is_served_equals_the_recommended_loader(
    compared: Mapping[Pair, tuple[Built, Any]], pair: Pair
) -> None:
    if pair not in compared:  # refused, or compared in a test of its own: test_census.py
        return
    built, answer = compared[pair]
    assert "error" not in answer, answer
    assert measure(built, answer) <= FP32_MAX_ABS_DIFF


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair.reason], ids=str)
def test_a_loader_that_is_not_compared_cannot_load_the_kind_or_makes_another_model_of_it(
    compared: Mapping[Pair, tuple[Built, Any]], pair: Pair
) -> None:
    if pair not in compared:
        return
    built, answer = compared[pair]
    assert "error" in answer or measure(built, answer) > FP32_MAX_ABS_DIFF
