"""Compares facts with the cases of a decision table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def one_of(*values: str) -> frozenset[str]:
    """Return the values of a fact that a case accepts."""
    return frozenset(values)


def are_accepted(facts: Sequence[Any], accepted: Sequence[frozenset[Any] | None]) -> bool:
    """Return whether a case accepts each fact; None accepts any value. ValueError says that their numbers differ."""
    return all(values is None or fact in values for values, fact in zip(accepted, facts, strict=True))
