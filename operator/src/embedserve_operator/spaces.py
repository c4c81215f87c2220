"""`kubectl embedserve spaces`: the vector spaces of a service, in a table."""

from __future__ import annotations

from typing import NamedTuple

from embedserve_operator.api.status import EmbeddingServiceStatus, Moment
from embedserve_operator.times import seconds_of

_UNITS = ((24 * 3600, "d"), (3600, "h"), (60, "m"), (1, "s"))


class Row(NamedTuple):
    """One line, as text. size: of the model's files. age: since the space took the name, or lost it."""

    space: str
    state: str
    dimensions: str
    size: str
    age: str
    url: str


HEAD = Row("SPACE", "STATE", "DIMENSIONS", "SIZE", "AGE", "URL")
_NONE = "-"


def table(status: EmbeddingServiceStatus, now: int) -> str:
    """All spaces that the status knows: the one on its way, the one that is served, those of before."""
    rows = (HEAD, *_rows(status, now))
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    lines = ("   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _rows(status: EmbeddingServiceStatus, now: int) -> list[Row]:
    rows = []
    coming, served = status.rollout, status.vector_space
    if coming is not None:
        dimensions, size = _number(coming.dimensions), _size(coming.size_bytes)
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
        size = _size(status.model.size_bytes if status.model is not None else None)
        age = _age(served.since, now)
        rows.append(Row(served.id, "Served", _number(served.dimensions), size, age, served.url or _NONE))
    for one in served.previous if served is not None else ():
        state = "Gone" if one.kept_until is None else f"Kept for {_left(one.kept_until, now)}"
        age = _age(one.replaced_at, now)
        rows.append(Row(one.id, state, _number(one.dimensions), _size(one.size_bytes), age, one.url or _NONE))
    return rows


def _number(value: int | None) -> str:
    return _NONE if value is None else str(value)


def _size(count: int | None) -> str:
    return _NONE if count is None else f"{count / 2**20:.0f} MiB"


def _age(moment: Moment | None, now: int) -> str:
    since = None if moment is None else seconds_of(moment)
    return _NONE if since is None else _duration(now - since)


def _left(moment: Moment, now: int) -> str:
    until = seconds_of(moment)
    return "?" if until is None else _duration(until - now)


def _duration(seconds: int) -> str:
    """In the largest unit of which it has two, as kubectl does."""
    seconds = max(0, seconds)
    for size, unit in _UNITS:
        if seconds >= 2 * size or size == 1:
            return f"{seconds // size}{unit}"
    raise AssertionError("the last unit takes all")
