"""Parses label selectors as the Kubernetes API spells them, for the labels of metric series."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from embedserve_operator.errors import InvalidMetricQueryError

Operator = Literal["in", "notin", "exists", "absent"]

_KEY = r"[A-Za-z0-9_](?:[-A-Za-z0-9_./]*[A-Za-z0-9_])?"
_VALUE = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?)?"
_EQUALITY = re.compile(rf"({_KEY})\s*(==|=|!=)\s*({_VALUE})")
_SET = re.compile(rf"({_KEY})\s+(in|notin)\s*\(([^()]*)\)")
_EXISTENCE = re.compile(rf"(!?)\s*({_KEY})")
_BETWEEN = re.compile(r",(?![^(]*\))")
"""A comma that is not inside parentheses."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """Represents one term of a selector."""

    key: str
    operator: Operator
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether labels meet the term, as the API server sees it: a missing label is not in any set,
        and so meets `notin`.
        """
        value = labels.get(self.key)
        if self.operator == "exists":
            return value is not None
        if self.operator == "absent":
            return value is None
        return (value in self.values) == (self.operator == "in")


Selector: TypeAlias = tuple[Requirement, ...]


def parse_selector(text: str) -> Selector:
    """Return the terms of a selector, all of which have to be met.

    Raises InvalidMetricQueryError for malformed ones.
    """
    if not text.strip():
        return ()
    return tuple(_parse_requirement(term.strip()) for term in _BETWEEN.split(text))


def matches_selector(selector: Selector, labels: Mapping[str, str]) -> bool:
    """Return whether labels meet every term."""
    return all(requirement.matches(labels) for requirement in selector)


def _parse_requirement(term: str) -> Requirement:
    if (equality := _EQUALITY.fullmatch(term)) is not None:
        key, operator, value = equality.groups()
        return Requirement(key, "notin" if operator == "!=" else "in", frozenset({value}))
    if (membership := _SET.fullmatch(term)) is not None:
        key, operator, values = membership.groups()
        value_set = frozenset(value.strip() for value in values.split(","))
        return Requirement(key, "in" if operator == "in" else "notin", value_set)
    if (existence := _EXISTENCE.fullmatch(term)) is not None:
        absent, key = existence.groups()
        return Requirement(key, "absent" if absent else "exists")
    raise InvalidMetricQueryError(f"not a label selector: {term!r}")
