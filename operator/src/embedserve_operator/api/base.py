"""Holds what all types of the resource are made of: the base class, checked strings, quantities."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, ValidationError, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema

from embedserve_operator.api.quantities import parse_quantity
from embedserve_operator.api.rules import CEL_KEY, Rule, every_key, matches


class Model(BaseModel):
    """Base: camelCase on the wire, frozen, unknown fields refused, `rules` enforced."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )
    rules: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="after")
    def _obey_rules(self) -> Self:
        for rule in self.rules:
            rule.validate(self)
        return self

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        described = handler(core_schema)
        if cls.rules:
            target = handler.resolve_ref_schema(described)
            target[CEL_KEY] = [rule.as_json() for rule in cls.rules]
        return described

    def as_wire(self) -> dict[str, Any]:
        """Return the value as the API speaks it, without what was not given."""
        return self.model_dump(by_alias=True, exclude_none=True, mode="json")


def describe_problems(error: ValidationError, root: str = "spec") -> str:
    """Return every problem as `path: message`, separated by semicolons. root: beginning of each path, or empty."""
    described = []
    for problem in error.errors(include_url=False, include_input=False):
        path = ".".join(filter(None, (root, *map(str, problem["loc"]))))
        message = problem["msg"].removeprefix("Value error, ")
        described.append(f"{path}: {message}" if path else message)
    return "; ".join(described)


def _is_quantity_not_negative(value: int | str) -> bool:
    number = parse_quantity(value)
    return number is not None and number >= 0


def _is_quantity_above_zero(value: int | str) -> bool:
    number = parse_quantity(value)
    return number is not None and number > 0


Quantity = Annotated[
    int | Annotated[str, Field(max_length=40)],
    Rule(
        cel="type(self) == int ? self >= 0 : isQuantity(self) && quantity(self).compareTo(quantity('0')) >= 0",
        message="must be a Kubernetes quantity of zero or more, such as 500m, 2 or 4Gi",
        check=_is_quantity_not_negative,
    ),
]
PositiveQuantity = Annotated[
    int | Annotated[str, Field(max_length=40)],
    Rule(
        cel="type(self) == int ? self > 0 : isQuantity(self) && quantity(self).compareTo(quantity('0')) > 0",
        message="must be a Kubernetes quantity above zero, such as 500m or 16; leave it out for the default",
        check=_is_quantity_above_zero,
    ),
]
ObjectName = Annotated[
    str,
    Field(max_length=253),
    matches(
        r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
        "must be the name of an object in the same namespace: lower-case letters, digits, '-' and '.'",
    ),
]
LabelName = Annotated[
    str,
    Field(max_length=63),
    matches(r"^[a-z]([-a-z0-9]*[a-z0-9])?$", "must start with a letter; lower-case letters, digits and '-'"),
]
LabelValue = Annotated[
    str,
    Field(max_length=63),
    matches(
        r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$",
        "must be a label's value: letters, digits, '-', '_' and '.', at most 63 characters",
    ),
]
QUALIFIED_NAME = "^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
"""A pattern of the keys of labels, annotations and resources."""
_QUALIFIED_NAME_MESSAGE = (
    "must be like team or example.com/team: at most 63 letters, digits, '-', '_' and '.', beginning and ending with a "
    "letter or digit, behind an optional domain and '/'"
)
LabelKey = Annotated[str, Field(max_length=317), matches(QUALIFIED_NAME, f"a key {_QUALIFIED_NAME_MESSAGE}")]
QUALIFIED_KEYS = every_key(QUALIFIED_NAME, f"each key {_QUALIFIED_NAME_MESSAGE}")
"""The rule for the keys of a map of labels, annotations or resources."""


RawObject = Annotated[dict[str, Any], Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})]
"""A value of Kubernetes' own API that is handed over as it is; the API server checks it in the child."""
