"""A docstring of the operator is a sentence that stands alone, and never the rest of one that begins with a name.

Those of the resource's types are the descriptions in its CustomResourceDefinition, which `kubectl explain` prints.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import embedserve_operator
from tests.support.docstrings import find_fragments

PACKAGE = Path(embedserve_operator.__file__).parent


def test_docstrings_are_sentences() -> None:
    paths = {path.relative_to(PACKAGE): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    assert len(paths) > 150
    fragments = {path.as_posix(): find_fragments(source) for path, source in paths.items()}
    assert {path: docstrings for path, docstrings in fragments.items() if docstrings} == {}


@pytest.mark.parametrize(
    ("source", "names"),
    [
        pytest.param('def f():\n "Whether it rains."', ["f"], id="a function"),
        pytest.param('class A:\n "What it is."', ["A"], id="a class"),
        pytest.param('class A:\n a: int = 1\n "Of the day."', ["a: int"], id="an attribute"),
        pytest.param('A = 1\n"How many there are."', ["A"], id="a constant"),
        pytest.param('def f(day: int):\n "day: of the month."', ["f"], id="a parameter"),
        pytest.param('def f():\n "Return whether it rains."', [], id="a sentence"),
        pytest.param('A = 1\n"The number of days."', [], id="a noun"),
        pytest.param("def f(): ...", [], id="no docstring"),
    ],
)
def test_what_is_no_sentence(source: str, names: list[str]) -> None:
    assert [docstring.name for docstring in find_fragments(source)] == names
