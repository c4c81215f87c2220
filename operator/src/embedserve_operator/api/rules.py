"""Validation rules that the API server (CEL) and this process (Python) enforce with the same words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

CEL_KEY = "x-kubernetes-validations"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. As an annotation of a field it checks the value, in `Model.rules` the whole object."""

    cel: str
    message: str
    check: Callable[[Any], bool]

    def validate(self, value: Any) -> Any:
        """The value itself, or ValueError with the message."""
        if not self.check(value):
            raise ValueError(self.message)
        return value

    def as_json(self) -> dict[str, str]:
        """The rule in the form that a CRD carries."""
        return {"rule": self.cel, "message": self.message}

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.validate, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        described = handler(schema)
        described.setdefault(CEL_KEY, []).append(self.as_json())
        return described


def between(minimum: int, maximum: int, remedy: str) -> Rule:
    """An integer inside bounds. CEL and not `minimum`, because only CEL lets the message say what to do."""
    return Rule(
        cel=f"self >= {minimum} && self <= {maximum}",
        message=f"must be between {minimum} and {maximum}; {remedy}",
        check=lambda value: minimum <= value <= maximum,
    )
