"""Reads objects that another version of the operator, or anybody, may have written: what fits the types is
kept, field by field, and the rest is left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Any, TypeVar

from pydantic import ValidationError

from embedserve_operator.api.base import Model

M = TypeVar("M", bound=Model)
Path = tuple[int | str, ...]


def read_known_fields(model: type[M], received: Any) -> M:
    """Return what can be read of a received object.

    A field that is not known or does not fit is left out; an object that lacks a field that it needs is left out as a
    whole, and so is an item of a list. Every field of `model` itself needs a default.
    """
    content = deepcopy(received) if isinstance(received, dict) else {}
    # Each turn removes something, and what is empty fits.
    while content:
        try:
            return model.model_validate(content)
        except ValidationError as error:
            faults = [_find_unreadable(fault["type"], fault["loc"]) for fault in error.errors()]
            _remove(content, faults)
    return model()


def _find_unreadable(kind: str, location: Path) -> Path:
    """Return the path of what cannot be read: where a field is missing, that is the object around it."""
    return location[:-1] if kind == "missing" else location


def _remove(content: dict[str, Any], paths: Iterable[Path]) -> None:
    """Remove what is at these paths; a path that leads nowhere takes the whole field at its beginning."""
    # The later items of a list go first, so that the places of the others stay.
    for path in sorted(set(paths), reverse=True):
        if not _remove_one(content, path):
            content.pop(str(path[0]) if path else next(iter(content)), None)


def _remove_one(content: Any, path: Path) -> bool:
    """Remove what is at a path; return whether there was anything."""
    try:
        for step in path[:-1]:
            content = content[step]
        del content[path[-1]]
    except (IndexError, KeyError, TypeError):
        return False
    return True
