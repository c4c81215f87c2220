"""A docstring of the operator is a sentence that stands alone, and never the rest of one that begins with a name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

import embedserve_operator

PACKAGE = Path(embedserve_operator.__file__).parent
FRAGMENT_WORDS = frozenset(
    {"As", "How", "Of", "What", "When", "Where", "Whether", "Which", "Who", "Whose", "Why"}
)


class Docstring(NamedTuple):
    """Holds a docstring with the name of what it describes."""

    name: str
    text: str


def list_docstrings(source: str) -> Iterator[Docstring]:
    """Yield the docstrings of a module, its classes and its functions, and those below attributes and constants."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield Docstring(getattr(node, "name", ""), ast.get_docstring(node) or "")
        if isinstance(node, ast.Module | ast.ClassDef):
            yield from _list_attribute_docstrings(node.body)


def list_function_docstrings(source: str) -> Iterator[Docstring]:
    """Yield the docstrings of functions alone."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield Docstring(node.name, ast.get_docstring(node) or "")


def _list_attribute_docstrings(body: list[ast.stmt]) -> Iterator[Docstring]:
    for statement, following in pairwise(body):
        if isinstance(statement, ast.Assign | ast.AnnAssign) and isinstance(following, ast.Expr):
            value = following.value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield Docstring(ast.unparse(statement).partition(" =")[0], value.value)


def find_fragments(path: Path) -> list[Docstring]:
    """Return the docstrings of a file that are no sentences.

    Those of the resource's types are the descriptions in its CustomResourceDefinition, which `kubectl explain` prints
    below the name of a field. So of that room only functions are looked at.
    """
    source = path.read_text(encoding="utf-8")
    is_schema = path.relative_to(PACKAGE).parts[0] == "api"
    docstrings = list_function_docstrings(source) if is_schema else list_docstrings(source)
    return [docstring for docstring in docstrings if is_fragment(docstring.text)]


def is_fragment(text: str) -> bool:
    """Return whether a docstring begins in the middle of a sentence."""
    return text.partition(" ")[0] in FRAGMENT_WORDS


def test_docstrings_are_sentences() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 150
    fragments = {path.relative_to(PACKAGE).as_posix(): find_fragments(path) for path in files}
    assert {path: docstrings for path, docstrings in fragments.items() if docstrings} == {}


@pytest.mark.parametrize(
    ("source", "names"),
    [
        pytest.param('def f():\n "Whether it rains."', ["f"], id="a function"),
        pytest.param('class A:\n "What it is."', ["A"], id="a class"),
        pytest.param('class A:\n a: int = 1\n "Of the day."', ["a: int"], id="an attribute"),
        pytest.param('A = 1\n"How many there are."', ["A"], id="a constant"),
        pytest.param('def f():\n "Return whether it rains."', [], id="a sentence"),
        pytest.param('A = 1\n"The number of days."', [], id="a noun"),
        pytest.param("def f(): ...", [], id="no docstring"),
    ],
)
def test_what_is_no_sentence(source: str, names: list[str]) -> None:
    assert [docstring.name for docstring in list_docstrings(source) if is_fragment(docstring.text)] == names
