"""Every kind of repository of the census: the page says what the runtime does, and what is served is exact."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.census.kinds import build_kind, judge_kind, open_runners
from tests.census.page import PAGE, judge_kinds, render
from tests.census.repositories import Kind, list_kinds, read_repositories
from tests.support.tolerances import FP32_MAX_ABS_DIFF

# Kinds of at least so many repositories are compared in every run of the tests, the others in the thorough one.
COMMON = 3
COUNTS = Counter(one.kind for one in read_repositories())
# Compared in tests of their own, with every output.
ELSEWHERE = {Kind("several", "new", "dense token-weights"): "tests/census/test_gte_multilingual.py"}


@pytest.mark.thorough
def test_the_page_says_what_the_runtime_does() -> None:
    assert PAGE.read_text() == render(judge_kinds()), "run python -m tests.census.page"


def test_every_repository_stands_in_the_table_once() -> None:
    names = Counter(one.name for one in read_repositories())
    assert [name for name, count in names.items() if count > 1] == []
    missing = [name for name in names if name not in PAGE.read_text()]
    assert missing == []


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, id=str(kind), marks=() if COUNTS[kind] >= COMMON else pytest.mark.thorough)
        for kind in list_kinds()
    ],
)
def test_what_is_served_equals_the_recommended_loader_and_what_is_not_is_refused_by_name(
    kind: Kind, tmp_path: Path
) -> None:
    built = build_kind(kind, tmp_path)
    verdict = judge_kind(built)
    if not verdict.is_served:
        assert verdict.refusal or verdict.taken_for
        return
    if kind in ELSEWHERE:
        assert (Path(__file__).parents[2] / ELSEWHERE[kind]).exists()
        return
    for runner in open_runners(built):
        assert built.measure(runner) <= FP32_MAX_ABS_DIFF
