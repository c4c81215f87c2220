"""Parses JSON into models, or raises an error that says what is wrong with it."""

from __future__ import annotations

import codecs
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from embedserve_runtime.api.errors import MalformedBody, WrongShape
from embedserve_runtime.api.schemas.known_fields import refuse_foreign_fields
from embedserve_runtime.api.schemas.validation_errors import (
    MAX_QUOTED_BODY_BYTES,
    describe_errors,
    describe_json_error,
)

M = TypeVar("M", bound=BaseModel)


def read_json(model: type[M], content: bytes) -> M:
    """Parse and validate a body, which may begin with a byte order mark: .NET's writers put one there.

    Raises MalformedBody, WrongShape.
    """
    content = content.removeprefix(codecs.BOM_UTF8)
    try:
        body: M = model.__pydantic_validator__.validate_json(content)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=len(content) <= MAX_QUOTED_BODY_BYTES)
        if errors[0]["type"] == "json_invalid":
            raise MalformedBody(describe_json_error(errors[0]["ctx"]["error"], content)) from None
        raise WrongShape(describe_errors(errors, model, "the body")) from None
    refuse_foreign_fields(body)
    return body


def read_python(model: type[M], value: Any) -> M:
    """Validate a value that is parsed JSON. Raises WrongShape."""
    try:
        body: M = model.__pydantic_validator__.validate_python(value)
    except ValidationError as error:
        raise WrongShape(describe_errors(error.errors(include_url=False), model, "the value")) from None
    refuse_foreign_fields(body)
    return body
