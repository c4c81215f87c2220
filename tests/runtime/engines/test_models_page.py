"""docs/models.md says what the code does."""

from __future__ import annotations

import pytest

from embedserve_runtime.model.families import FAMILIES
from tests.runtime.engines.cases import CASES
from tests.runtime.engines.engines import ENGINES
from tests.support.models_page import PAGE, TABLE, FamilyRow, render


def test_the_page_is_what_the_table_gives() -> None:
    assert PAGE.read_text() == render(), "run `python -m tests.support.models_page`"


def test_the_table_names_every_model_type_and_no_other() -> None:
    assert {name for row in TABLE for name in row.model_types} == set(FAMILIES)


def test_every_case_belongs_to_a_row() -> None:
    starts = tuple(start for row in TABLE for start in row.cases)
    assert [case.name for case in CASES if not case.name.startswith(starts)] == []


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.family)
def test_a_family_has_three_shapes_and_runs_on_the_engines_that_the_page_says(row: FamilyRow) -> None:
    cases = [case for case in CASES if case.name.startswith(row.cases)]
    assert len(cases) >= 3
    for case in cases:
        assert {engine for engine in ENGINES if engine not in case.not_on} == set(row.engines), case.name
