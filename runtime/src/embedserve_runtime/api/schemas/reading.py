"""JSON to the models, or an error that says what is wrong with it."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from embedserve_runtime.api.errors import MalformedBody, WrongShape
from embedserve_runtime.api.schemas.problems import QUOTED_BODY, why_not_json, words_of

M = TypeVar("M", bound=BaseModel)


def read_json(model: type[M], content: bytes) -> M:
    """Raises MalformedBody, WrongShape."""
    try:
        return model.__pydantic_validator__.validate_json(content)  # type: ignore[no-any-return]  # of any model
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=len(content) <= QUOTED_BODY)
        if errors[0]["type"] == "json_invalid":
            raise MalformedBody(why_not_json(errors[0]["ctx"]["error"], content)) from None
        raise WrongShape(words_of(errors, model, "the body")) from None


def read_python(model: type[M], value: Any, where: str = "") -> M:
    """Of a value that is parsed JSON. where: what an error names first. Raises WrongShape."""
    try:
        return model.__pydantic_validator__.validate_python(value)  # type: ignore[no-any-return]  # of any model
    except ValidationError as error:
        words = words_of(error.errors(include_url=False), model, "the value")
        raise WrongShape(f"{where}: {words}" if where else words) from None
