"""Finds docstrings that are the rest of a sentence which begins with a name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

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


def find_fragments(source: str, *, is_schema: bool = False) -> list[Docstring]:
    """Return the docstrings of a module that begin in the middle of a sentence.

    is_schema: the docstrings of its types are descriptions in a schema, which tools print below the name of a field. So
    only functions are looked at.
    """
    docstrings = list_function_docstrings(source) if is_schema else list_docstrings(source)
    return [docstring for docstring in docstrings if is_fragment(docstring.text)]


def is_fragment(text: str) -> bool:
    """Return whether a docstring begins in the middle of a sentence."""
    return text.partition(" ")[0] in FRAGMENT_WORDS
