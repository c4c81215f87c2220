"""Implements `kubectl embedserve spaces`: it prints the vector spaces of a service as a table."""

from __future__ import annotations

from typing import NamedTuple

from embedserve_operator.api.quantities import MIB
from embedserve_operator.api.status import EmbeddingServiceStatus, Moment
from embedserve_operator.api.times import parse_moment

_UNITS = ((24 * 3600, "d"), (3600, "h"), (60, "m"), (1, "s"))


class Row(NamedTuple):
    """A line of the table as text.

    `size` is that of the model's files; `age` counts from when the space took the name, or lost it.
    """

    space: str
    state: str
    dimensions: str
    size: str
    age: str
    url: str


HEADER = Row("SPACE", "STATE", "DIMENSIONS", "SIZE", "AGE", "URL")
_NONE = "-"


def format_table(status: EmbeddingServiceStatus, now: int) -> str:
    """Return a table of all vector spaces that the status knows: the coming one, the served one, and the
    previous ones.
    """
    rows = (HEADER, *_build_rows(status, now))
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
    lines = ("   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _build_rows(status: EmbeddingServiceStatus, now: int) -> list[Row]:
    rows = []
    coming, served = status.rollout, status.vector_space
    if coming is not None:
        dimensions, size = _format_number(coming.dimensions), _format_size(coming.size_bytes)
        rows.append(
            Row(
                coming.vector_space or "not known yet",
                coming.state,
                dimensions,
                size,
                _NONE,
                coming.url or _NONE,
            )
        )
    if served is not None and served.id is not None:
        size = _format_size(status.model.size_bytes if status.model is not None else None)
        age = _format_age(served.since, now)
        rows.append(
            Row(served.id, "Served", _format_number(served.dimensions), size, age, served.url or _NONE)
        )
    for previous in served.previous if served is not None else ():
        state = (
            "Gone"
            if previous.kept_until is None
            else f"Kept for {_format_remaining(previous.kept_until, now)}"
        )
        age = _format_age(previous.replaced_at, now)
        rows.append(
            Row(
                previous.id,
                state,
                _format_number(previous.dimensions),
                _format_size(previous.size_bytes),
                age,
                previous.url or _NONE,
            )
        )
    return rows


def _format_number(value: int | None) -> str:
    return _NONE if value is None else str(value)


def _format_size(count: int | None) -> str:
    return _NONE if count is None else f"{count / MIB:.0f} MiB"


def _format_age(moment: Moment | None, now: int) -> str:
    since = None if moment is None else parse_moment(moment)
    return _NONE if since is None else _format_duration(now - since)


def _format_remaining(moment: Moment, now: int) -> str:
    until = parse_moment(moment)
    return "?" if until is None else _format_duration(until - now)


def _format_duration(seconds: int) -> str:
    """Return a duration in the largest unit of which it has at least two, as kubectl does."""
    seconds = max(0, seconds)
    for size, unit in _UNITS:
        if seconds >= 2 * size or size == 1:
            return f"{seconds // size}{unit}"
    raise AssertionError("the last unit takes all")
