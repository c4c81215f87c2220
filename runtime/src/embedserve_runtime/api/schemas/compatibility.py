"""Says of the fields of a body which other APIs have them and what becomes of them.

The page of compatibility is written from it. A field without a note is of the route's own dialect, and is done.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Verdict(StrEnum):
    """What becomes of a field.

    DONE: what its API says. IGNORED: it changes no vector. REFUSED: only the value that changes nothing is taken.
    """

    DONE = "done"
    IGNORED = "ignored"
    REFUSED = "refused"


class Origin(NamedTuple):
    """Metadata of a field: the APIs that have it, and its verdict."""

    apis: tuple[str, ...]
    verdict: Verdict


def done(*apis: str) -> Origin:
    return Origin(apis, Verdict.DONE)


def ignored(*apis: str) -> Origin:
    return Origin(apis, Verdict.IGNORED)


def refused(*apis: str) -> Origin:
    return Origin(apis, Verdict.REFUSED)
