"""docs/models.md says what the code does."""

from __future__ import annotations

import pytest

from embedserve_runtime.model.families import FAMILIES
from embedserve_runtime.model.heads.classifiers import CLASSIFIERS
from embedserve_runtime.model.heads.masked_lm import MASKED_LMS
from embedserve_runtime.model.heads.token_classifiers import TOKEN_CLASSIFIERS
from tests.runtime.engines.cases import CASES
from tests.runtime.heads import head_cases
from tests.support.models_page import PAGE, TABLE, render


def test_the_page_is_what_the_table_gives() -> None:
    assert PAGE.read_text() == render(), "run `python -m tests.support.models_page`"


def test_the_table_names_every_model_type_and_every_head_and_no_other() -> None:
    assert {name for row in TABLE for name in row.model_types} == set(FAMILIES)
    assert {name for row in TABLE for name in row.heads} == {
        *CLASSIFIERS,
        *MASKED_LMS,
        *TOKEN_CLASSIFIERS,
    }


def test_every_case_belongs_to_one_row() -> None:
    for case in CASES:
        assert [row.family for row in TABLE if case.name.startswith(row.cases)], case.name
        assert len([row for row in TABLE if case.name.startswith(row.cases)]) == 1, case.name


@pytest.mark.parametrize("name", [name for row in TABLE for name in row.cases])
def test_a_family_has_three_shapes(name: str) -> None:
    assert sum(case.name.startswith(name) for case in CASES) >= 3


@pytest.mark.parametrize("head", CLASSIFIERS)
def test_a_classifier_has_three_shapes(head: str) -> None:
    assert sum(case.family == head for case in head_cases.CLASSIFIERS) >= 3


@pytest.mark.parametrize("head", MASKED_LMS)
def test_a_masked_lm_head_has_three_shapes(head: str) -> None:
    assert sum(case.family == head for case in head_cases.MASKED_LMS) >= 3


def test_every_token_classifier_has_a_case() -> None:
    assert {case.family for case in head_cases.TOKEN_CLASSIFIERS} == set(TOKEN_CLASSIFIERS)
