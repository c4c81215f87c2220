"""Finds docstrings that begin in the middle of a sentence, or with a parameter."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

FRAGMENT_WORDS = frozenset(
    {"As", "How", "Of", "What", "When", "Where", "Whether", "Which", "Who", "Whose", "Why"}
)
_PARAMETER = re.compile(r"[a-z_]+(, [a-z_]+)*: ")


class Docstring(NamedTuple):
    """A docstring with the name of what it describes."""

    name: str
    text: str


def list_docstrings(source: str) -> Iterator[Docstring]:
    """Yield the docstrings of a module, its classes and its functions, and those below attributes and constants."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield Docstring(getattr(node, "name", ""), ast.get_docstring(node) or "")
        if isinstance(node, ast.Module | ast.ClassDef):
            yield from _list_attribute_docstrings(node.body)


def _list_attribute_docstrings(body: list[ast.stmt]) -> Iterator[Docstring]:
    for statement, following in pairwise(body):
        if isinstance(statement, ast.Assign | ast.AnnAssign) and isinstance(following, ast.Expr):
            value = following.value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield Docstring(ast.unparse(statement).partition(" =")[0], value.value)


def find_fragments(source: str) -> list[Docstring]:
    """Return the docstrings of a module that begin in the middle of a sentence."""
    return [docstring for docstring in list_docstrings(source) if is_fragment(docstring.text)]


def is_fragment(text: str) -> bool:
    """Return whether a docstring begins in the middle of a sentence, or with a parameter."""
    return text.partition(" ")[0] in FRAGMENT_WORDS or _PARAMETER.match(text) is not None
