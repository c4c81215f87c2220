"""Describes what is wrong with a file or a setting, without quoting its values: one of them may be a secret."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pydantic import ValidationError

if TYPE_CHECKING:
    from yaml import YAMLError

FieldPath = Sequence[str | int]


def join_path(path: FieldPath) -> str:
    """Join the path of a field with dots; the path of the whole is `content`."""
    return ".".join(map(str, path)) or "content"


def describe_problems(error: ValidationError, describe_path: Callable[[FieldPath], str] = join_path) -> str:
    """Describe every problem of a validation as `path: message`, separated by semicolons."""
    return "; ".join(
        f"{describe_path(problem['loc'])}: {problem['msg'].removeprefix('Value error, ')}"
        for problem in error.errors(include_url=False, include_input=False, include_context=False)
    )


def describe_yaml_position(error: YAMLError) -> str:
    """Describe where in a YAML document an error is, such as ` in line 3, column 1`; empty if the parser does not say.

    The parser's own text cannot be used: it quotes the line.
    """
    mark = getattr(error, "problem_mark", None)
    return f" in line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
