"""Every kind of repository that is served, against the loader that its authors recommend, with transformers 4: files as
they were then, on both engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tests.census.built import Built, greatest_difference
from tests.census.kinds import Verdict, open_runners
from tests.census.outside import Comparison, Pair, list_pairs, prepare, read_results
from tests.census.test_census import ELSEWHERE
from tests.oracles.outside import CENSUS_SCRIPT, answers, needs_oracles
from tests.support.tolerances import FP32_MAX_ABS_DIFF

pytestmark = needs_oracles

PAIRS = [pair for pair in list_pairs() if pair.runs_outside]


@dataclass(frozen=True)
class LoaderAnswers:
    """answers: of each pair whose kind is served, with the folder. others: what the runtime makes of other kinds."""

    answers: Mapping[Pair, tuple[Built, Any]]
    others: Mapping[Pair, Verdict]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> LoaderAnswers:
    """All answers come from one process."""
    home = tmp_path_factory.mktemp("census")
    found = {pair: prepare(pair, home / str(number)) for number, pair in enumerate(PAIRS)}
    served = {pair: one for pair, one in found.items() if isinstance(one, Comparison)}
    said = answers([one.ask for one in served.values()], CENSUS_SCRIPT)
    return LoaderAnswers(
        {pair: (one.built, answer) for (pair, one), answer in zip(served.items(), said, strict=True)},
        {pair: one for pair, one in found.items() if isinstance(one, Verdict)},
    )


def measure(built: Built, answer: Mapping[str, Any]) -> float:
    """The greatest difference of both engines from the loader."""
    assert built.results is not None
    theirs = read_results(answer)
    return max(greatest_difference(built.results(runner), theirs) for runner in open_runners(built))


def is_refused_or_compared_elsewhere(pair: Pair, verdict: Verdict) -> bool:
    return not verdict.is_served or pair.kind in ELSEWHERE


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if not pair.reason], ids=str)
def test_what_is_served_equals_the_recommended_loader(compared: LoaderAnswers, pair: Pair) -> None:
    if pair in compared.others:
        assert is_refused_or_compared_elsewhere(pair, compared.others[pair])
        return
    built, answer = compared.answers[pair]
    assert "error" not in answer, answer
    assert measure(built, answer) <= FP32_MAX_ABS_DIFF


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair.reason], ids=str)
def test_a_loader_that_is_not_compared_cannot_load_the_kind_or_makes_another_model_of_it(
    compared: LoaderAnswers, pair: Pair
) -> None:
    if pair in compared.others:
        assert is_refused_or_compared_elsewhere(pair, compared.others[pair])
        return
    built, answer = compared.answers[pair]
    assert "error" in answer or measure(built, answer) > FP32_MAX_ABS_DIFF
