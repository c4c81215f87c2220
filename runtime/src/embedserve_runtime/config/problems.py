"""Describes what is wrong with a file or a setting, without quoting its values: one of them may be a secret."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pydantic import ValidationError

if TYPE_CHECKING:
    from yaml import YAMLError

FieldPath = Sequence[str | int]
_SHOULD_BE: Final = "Input should be "
_MESSAGES: Final[Mapping[str, str]] = {"model_type": f"{_SHOULD_BE}a mapping"}
"""Messages by the type of a problem, where pydantic's own names a class of ours."""


def join_path(path: FieldPath) -> str:
    """Join the path of a field with dots; the path of the whole is `content`."""
    return ".".join(map(str, path)) or "content"


def describe_problems(error: ValidationError, describe_path: Callable[[FieldPath], str] = join_path) -> str:
    """Describe every problem of a validation as `path: message`, separated by semicolons.

    A value that may be of several types has a problem for each; they are joined by "or".
    """
    messages: dict[str, list[str]] = {}
    for problem in error.errors(include_url=False, include_input=False, include_context=False):
        message = _MESSAGES.get(problem["type"], problem["msg"].removeprefix("Value error, "))
        messages.setdefault(describe_path(problem["loc"]), []).append(message)
    return "; ".join(f"{path}: {_join_alternatives(texts)}" for path, texts in messages.items())


def _join_alternatives(messages: Sequence[str]) -> str:
    first, *others = messages
    return " or ".join([first, *(other.removeprefix(_SHOULD_BE) for other in others)])


def describe_yaml_position(error: YAMLError) -> str:
    """Describe where in a YAML document an error is, such as ` in line 3, column 1`; empty if the parser does not say.

    The parser's own text cannot be used: it quotes the line.
    """
    mark = getattr(error, "problem_mark", None)
    return f" in line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
