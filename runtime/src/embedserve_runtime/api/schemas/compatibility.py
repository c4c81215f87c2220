"""Notes on the fields of a body: which other APIs have them, and how far the server supports them.

docs/compatibility.md is written from the notes. A field without one belongs to the route's own dialect and is
supported.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class FieldSupport(StrEnum):
    """The extent to which a field of an API is supported.

    SUPPORTED: it does what its API says. IGNORED: it is accepted and changes no vector. REFUSED: only values that
    change nothing are accepted.
    """

    SUPPORTED = "supported"
    IGNORED = "ignored"
    REFUSED = "refused"


class FieldNote(NamedTuple):
    """Metadata of a field: the APIs that have it, and how far it is supported."""

    apis: tuple[str, ...]
    support: FieldSupport


def supported_for(*apis: str) -> FieldNote:
    """Note that the field is supported as these APIs define it."""
    return FieldNote(apis, FieldSupport.SUPPORTED)


def ignored_for(*apis: str) -> FieldNote:
    """Note that the field of these APIs is accepted and ignored."""
    return FieldNote(apis, FieldSupport.IGNORED)


def refused_for(*apis: str) -> FieldNote:
    """Note that values of the field of these APIs that would change something are refused."""
    return FieldNote(apis, FieldSupport.REFUSED)
