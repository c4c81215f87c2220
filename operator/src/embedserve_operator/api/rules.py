"""Defines validation rules that the API server (CEL) and this process (Python) enforce with the
same message.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.alias_generators import to_snake
from pydantic_core import CoreSchema, core_schema

CEL_KEY = "x-kubernetes-validations"


@dataclass(frozen=True, slots=True)
class Rule:
    """A validation rule.

    As an annotation of a field it checks the value, in `Model.rules` the whole object.
    """

    cel: str
    message: str
    check: Callable[[Any], bool]

    def validate(self, value: Any) -> Any:
        """Return the value itself, or raise ValueError with the message."""
        if not self.check(value):
            raise ValueError(self.message)
        return value

    def as_json(self) -> dict[str, str]:
        """Return the rule in the form that a CRD carries."""
        return {"rule": self.cel, "message": self.message}

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.validate, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        described = handler(schema)
        described.setdefault(CEL_KEY, []).append(self.as_json())
        return described


@dataclass(frozen=True, slots=True)
class ListMap:
    """Marks a list as a map: no two of its items may be the same in all of some fields.

    The API server merges such a list item by item, and cannot store it with two items of one key.
    """

    fields: tuple[str, ...]
    """Names of the fields on the wire."""

    def validate(self, items: Any) -> Any:
        """Return the items, or raise ValueError where two have one key."""
        keys = set()
        for item in items:
            key = tuple(getattr(item, to_snake(field)) for field in self.fields)
            if key in keys:
                described = ", ".join(
                    f"{field} {value}" for field, value in zip(self.fields, key, strict=True)
                )
                raise ValueError(f"two items have {described}: remove one")
            keys.add(key)
        return items

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.validate, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        marks = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(self.fields)}
        return {**handler(schema), **marks}


@dataclass(frozen=True, slots=True)
class ListSet:
    """Marks a list as a set: no value appears twice."""

    def validate(self, items: Any) -> Any:
        """Return the items, or raise ValueError where one appears twice."""
        if len(set(items)) < len(items):
            raise ValueError("a value appears twice: remove one")
        return items

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.validate, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {**handler(schema), "x-kubernetes-list-type": "set"}


def between(minimum: int, maximum: int, remedy: str) -> Rule:
    """Return a rule for an integer inside bounds.

    It uses CEL and not `minimum`, because only CEL lets the message say what to do.
    """
    return Rule(
        cel=f"self >= {minimum} && self <= {maximum}",
        message=f"must be between {minimum} and {maximum}; {remedy}",
        check=lambda value: minimum <= value <= maximum,
    )


def matches(pattern: str, message: str) -> Rule:
    """Return a rule for a string in which a pattern is found."""
    compiled = re.compile(pattern)
    escaped = pattern.replace("\\", "\\\\")
    return Rule(
        cel=f"self.matches('{escaped}')", message=message, check=lambda v: compiled.search(v) is not None
    )


def no_key(pattern: str, message: str) -> Rule:
    """Return a rule for a map none of whose keys matches a pattern."""
    compiled = re.compile(pattern)
    return Rule(
        cel=f"!self.exists(key, key.matches('{pattern}'))",
        message=message,
        check=lambda keys: not any(compiled.search(key) for key in keys),
    )


def every_key(pattern: str, message: str) -> Rule:
    """Return a rule for a map each of whose keys matches a pattern."""
    compiled = re.compile(pattern)
    return Rule(
        cel=f"self.all(key, key.matches('{pattern}'))",
        message=message,
        check=lambda keys: all(compiled.search(key) for key in keys),
    )


def exactly_one(fields: tuple[str, ...], attributes: tuple[str, ...], message: str) -> Rule:
    """Return a rule for an object in which exactly one of some fields is given; `attributes` are their Python
    names.
    """
    has = ", ".join(f"has(self.{field})" for field in fields)
    return Rule(
        cel=f"[{has}].filter(given, given).size() == 1",
        message=message,
        check=lambda value: sum(getattr(value, name) is not None for name in attributes) == 1,
    )
