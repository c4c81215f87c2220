"""Describes why a body was refused, in a message that a person can act on."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Mapping, Sequence
from inspect import isclass
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails, from_json

from embedserve_runtime.api.schemas.base import ExpectedInput

MAX_PROBLEMS = 3
MAX_QUOTED = 50
# Larger bodies are refused without quotes: quoting creates Python objects of everything in them.
MAX_QUOTED_BODY_BYTES = 1_000_000

_Path = tuple[int | str, ...]

# What was expected, by pydantic's error type; the argument is the error's context.
_EXPECTED: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "string_type": lambda _: "a text",
    "int_type": lambda _: "an integer",
    "float_type": lambda _: "a number",
    "finite_number": lambda _: "a finite number",
    "bool_type": lambda _: "true or false",
    "list_type": lambda _: "a list",
    "model_type": lambda _: "an object",
    "dict_type": lambda _: "an object",
    "none_required": lambda _: "null",
    "literal_error": lambda context: str(context["expected"]),
    "enum": lambda context: str(context["expected"]),
    "greater_than_equal": lambda context: f"at least {context['ge']:g}",
    "too_short": lambda context: f"a list of length {context['min_length']} or more",
    "too_long": lambda context: f"a list of length {context['max_length']} or less",
    "string_pattern_mismatch": lambda context: f"a text that matches {context['pattern']}",
}
_LINE_AND_COLUMN = re.compile(r" at line (\d+) column (\d+)$")
_SURROGATES = re.compile(rb"(?:\\u[dD][89a-fA-F][0-9a-fA-F]{2})+")
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""A text in UTF-32 begins like one in UTF-16, or with a zero."""
# How far before the position of the error the broken escape may begin.
_WINDOW = 600


def describe_errors(errors: Sequence[ErrorDetails], model: type[BaseModel], subject: str) -> str:
    """Describe what is wrong with each field. subject: what the whole value is called."""
    groups: dict[_Path, list[ErrorDetails]] = {}
    for error in errors:
        groups.setdefault(tuple(step for step in error["loc"] if step != ""), []).append(error)
    # A list with a wrong item is not a text either; only the error of the item is described.
    deepest = [path for path in groups if not any(_is_inside(inner, path) for inner in groups)]
    problems = [_describe_problem(path, groups[path], model, subject) for path in deepest[:MAX_PROBLEMS]]
    if len(deepest) > MAX_PROBLEMS:
        problems.append(f"and {len(deepest) - MAX_PROBLEMS} more")
    return "; ".join(problems)


def describe_json_error(reason: str, content: bytes) -> str:
    """Describe why a body is not JSON. reason: that of the parser."""
    if not content.strip():
        return "empty body"
    if content.startswith(_UTF16_MARKS) or b"\0" in content[:2]:
        return "the body is not valid JSON: it looks like UTF-16 or UTF-32; send UTF-8"
    if "hex escape" in reason and (problem := _describe_lone_surrogate(reason, content)):
        return f"the body is not valid JSON: {problem}"
    if reason.startswith("invalid unicode code point"):
        offset = _find_offset(reason, content)
        name = "a text" if offset is None else _name_last_text(content[: offset - 1])
        reason = reason.replace("invalid unicode code point", f"{name} is not UTF-8")
    if reason.startswith("recursion limit exceeded"):
        reason = reason.replace("recursion limit exceeded", "it is nested too deep")
    return f"the body is not valid JSON: {reason}"


def _is_inside(path: _Path, outer: _Path) -> bool:
    return len(path) > len(outer) and path[: len(outer)] == outer


def _describe_problem(
    path: _Path, errors: Sequence[ErrorDetails], model: type[BaseModel], subject: str
) -> str:
    name = f"`{_format_path(path)}`" if path else subject
    first = errors[0]
    if first["type"] == "missing":
        return f"{name} is missing"
    if first["type"] == "extra_forbidden":
        return f"{name} is unknown: there are {', '.join(_find_fields(path[:-1], model))}"
    expected = _find_expected_input(path, model) or " or ".join(
        dict.fromkeys(map(_describe_expected, errors))
    )
    return f"{name} must be {expected}{_describe_input(first)}"


def _format_path(path: _Path) -> str:
    return ".".join(map(str, path))


def _find_expected_input(path: _Path, model: type[BaseModel]) -> str:
    """Find how a field with several types describes itself, or its items."""
    field = model.model_fields.get(str(path[0])) if path else None
    expected = (
        next((note for note in field.metadata if isinstance(note, ExpectedInput)), None) if field else None
    )
    if expected is None or len(path) > 2:
        return ""
    return expected.value if len(path) == 1 else expected.item


def _find_fields(path: _Path, model: type[BaseModel]) -> list[str]:
    """Find the names of the fields of the model at a path."""
    for step in path:
        annotation = model.model_fields[str(step)].annotation
        model = next(
            part
            for part in (annotation, *get_args(annotation))
            if isclass(part) and issubclass(part, BaseModel)
        )
    return [*model.model_fields]


def _describe_expected(error: ErrorDetails) -> str:
    write = _EXPECTED.get(error["type"])
    return write(error.get("ctx", {})) if write else error["msg"].removeprefix("Input should be ")


def _describe_input(error: Mapping[str, object]) -> str:
    return f" (got {_quote(error['input'])})" if "input" in error else ""


def _quote(value: object) -> str:
    match value:
        case dict():
            return "an object"
        case list():
            return f"a list of length {len(value)}"
        case str():
            return _shorten(json.dumps(value[: MAX_QUOTED + 1], ensure_ascii=False))
        case _:
            return _shorten(json.dumps(value))


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_QUOTED else text[: MAX_QUOTED - 3] + "..."


def _describe_lone_surrogate(reason: str, content: bytes) -> str:
    """Describe an escape that is half of a surrogate pair; empty for other errors."""
    end = _find_offset(reason, content)
    if end is None:
        return ""
    runs = list(_SURROGATES.finditer(content, max(0, end - _WINDOW), end))
    if not runs:
        return ""
    run = runs[-1]
    halves = [point for point in json.loads(b'"%b"' % run.group()) if "\ud800" <= point <= "\udfff"]
    if not halves:
        return ""
    name = _name_last_text(content[: run.start()])
    return f"{name} has half a surrogate pair, \\u{ord(halves[-1]):04x}: a character was cut in two, often an emoji"


def _name_last_text(start: bytes) -> str:
    """Name the text in which the JSON is cut off."""
    if _find_last_value(start + b'": 0')[1] == 0:  # only the name of a field may be followed by a value
        return "the name of a field"
    path, value = _find_last_value(start)
    return f"the text of `{_format_path(path)}`" if path and isinstance(value, str) else "a text"


def _find_offset(reason: str, content: bytes) -> int | None:
    """Return the offset in the content of the line and column that the parser's reason names; None without them."""
    match = _LINE_AND_COLUMN.search(reason)
    if match is None:
        return None
    line, column = map(int, match.groups())
    start = 0
    for _ in range(line - 1):
        start = content.index(b"\n", start) + 1
    return start + column


def _find_last_value(start: bytes) -> tuple[_Path, Any]:
    """Find the last value in JSON that is cut off, and its path; no path and None where the JSON is broken before."""
    try:
        value = from_json(start, allow_partial="trailing-strings")
    except ValueError:
        return (), None
    path: list[int | str] = []
    while isinstance(value, dict | list) and value:
        step = next(reversed(value)) if isinstance(value, dict) else len(value) - 1
        path.append(step)
        value = value[step]
    return tuple(path), value
