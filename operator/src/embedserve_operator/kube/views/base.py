"""Defines what views are made of: the base class, and fields that never fail to be read.

Anybody may have written an object that the API server hands out, and the types of its status are rarely
checked. One field that is not what it should be must not stop the work on all other objects. So a view reads
a field that is missing, or has another type, as the empty value of its type, and leaves out items of a list
or of a map that have another type.
"""

from __future__ import annotations

from typing import Annotated, Any, Self, TypeAlias, TypeVar, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    OnErrorOmit,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
)
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, core_schema


class View(BaseModel):
    """Base of all views: camelCase on the wire, frozen; fields that are not declared are dropped."""

    model_config = ConfigDict(alias_generator=to_camel, extra="ignore", frozen=True)

    @classmethod
    def parse(cls, received: Any) -> Self:
        """Return the view of a received value; it is empty when the value is not an object."""
        try:
            return cls.model_validate(received)
        except ValidationError:
            return cls.model_validate({})

    @classmethod
    def parse_json(cls, content: str | bytes) -> Self:
        """Return the view of JSON text; it is empty when the text is not JSON, or not an object."""
        try:
            return cls.model_validate_json(content)
        except ValidationError:
            return cls.model_validate({})

    def as_json(self) -> bytes:
        """Return JSON text from which `parse_json` makes the same view."""
        return self.model_dump_json(by_alias=True, exclude_unset=True).encode()


class _OrEmpty:
    """Marks a field that is the empty value of its type when it is missing or has another type."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        make_empty = get_origin(source) or source
        return core_schema.with_default_schema(
            handler(source), default_factory=make_empty, on_error="default"
        )


class _OrNone:
    """Marks a field that is None when it is missing or has another type."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_default_schema(handler(source), default=None, on_error="default")


T = TypeVar("T")

Text: TypeAlias = Annotated[StrictStr, _OrEmpty()]
"""A string; empty when it is missing."""
Count: TypeAlias = Annotated[StrictInt, _OrEmpty()]
"""An integer; 0 when it is missing, since the API leaves out counts of zero."""
Flag: TypeAlias = Annotated[StrictBool, _OrEmpty()]
"""A boolean; false when it is missing."""
Part: TypeAlias = Annotated[T, _OrEmpty()]
"""A view inside of another one; empty when it is missing."""
Maybe: TypeAlias = Annotated[T | None, _OrNone()]
"""A value that may be missing, where that says something."""
Items: TypeAlias = Annotated[tuple[OnErrorOmit[T], ...], _OrEmpty()]
"""The items of a list that have the type; none when the list is missing."""
TextMap: TypeAlias = Annotated[dict[StrictStr, OnErrorOmit[StrictStr]], _OrEmpty()]
"""The entries of a map whose values are strings; none when the map is missing."""
Quantities: TypeAlias = Annotated[dict[StrictStr, OnErrorOmit[StrictStr | StrictInt]], _OrEmpty()]
"""Quantities by the name of the resource; none when the map is missing."""
Number: TypeAlias = Maybe[StrictFloat]
"""A floating-point number or integer; None when it is missing."""


class Presence(View):
    """Stands for an object of which only its presence is read."""
