"""Reads what requests of all dialects have in common: inputs, and the options of the client."""

from __future__ import annotations

import re
import sys
from typing import NamedTuple, TypeVar

from embedserve_runtime.api.context import RequestContext
from embedserve_runtime.api.errors import WrongShape
from embedserve_runtime.api.input_types import InputTypeName, split_model_name
from embedserve_runtime.api.responses import VECTOR_SPACE
from embedserve_runtime.errors import InvalidInput, VectorSpaceMismatch
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.service import InferenceService
from embedserve_runtime.tokenizing import Input, Side

T = TypeVar("T")

SPACE_SUFFIX = re.compile(r"@(vs[12]-[^@]*)\Z")
"""The end of a request's `model` that names the vector space which the client requires:
`docs@vs2-0123456789abcdef0123`.
"""
TIMEOUT = b"x-embedserve-timeout"
_DECIMAL = re.compile(rb"\s*\+?(?P<digits>[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\s*")
"""Python's own reader of numbers takes `1_0`, `nan` and `inf`, too."""


class RequestOptions(NamedTuple):
    """The options of a request that come from its headers and its model name.

    vector_space: the one that the client requires. timeout: the seconds that it waits. input_type: what the inputs are,
    where the model's name says it.
    """

    vector_space: str | None
    timeout: float | None
    input_type: InputTypeName | None = None


def read_request_options(context: RequestContext, model: str | None = None) -> RequestOptions:
    """Read the options of a request. model: that of its body, which may name a space and a type of inputs too.

    Raises InvalidInput, VectorSpaceMismatch.
    """
    space = context.headers.get(VECTOR_SPACE, b"").strip().decode("latin-1") or None
    timeout = _parse_timeout(context)
    if model is None or model == context.model_name:
        return RequestOptions(space, timeout)
    name, suffix = _split_space(model)
    if suffix is not None and space not in (None, suffix):
        raise VectorSpaceMismatch(
            f"`model` asks for vector space {suffix} and X-Embedserve-Vector-Space for {space}; leave one out"
        )
    _, input_type = split_model_name(name, context.model_name)
    return RequestOptions(space if suffix is None else suffix, timeout, input_type)


def read_untyped_options(context: RequestContext, model: str | None) -> RequestOptions:
    """Read the options of a request whose inputs have no type. Raises InvalidInput, VectorSpaceMismatch."""
    options = read_request_options(context, model)
    if options.input_type is not None:
        raise InvalidInput(
            f"`model` says {options.input_type} behind the name, and this route reads all texts alike; leave it out"
        )
    return options


def check_header_options(context: RequestContext, service: InferenceService) -> None:
    """Refuse a request for options in its headers. Raises InvalidInput, VectorSpaceMismatch."""
    space = read_request_options(context).vector_space
    if space is None or not service.card.serves_space(space):
        service.check_space(space)


def _split_space(model: str) -> tuple[str, str | None]:
    """Split a model's name into the name and the vector space after `@`."""
    match = SPACE_SUFFIX.search(model)
    return (model, None) if match is None else (model[: match.start()], match[1])


def _parse_timeout(context: RequestContext) -> float | None:
    value = context.headers.get(TIMEOUT)
    if value is None:
        return None
    number = _DECIMAL.fullmatch(value)
    if number is None or not number["digits"].strip(b"0."):
        raise InvalidInput("X-Embedserve-Timeout must be a decimal number of seconds greater than 0")
    # What a client has left of its own time may be too small for a float; it is still more than nothing.
    return float(value) or sys.float_info.min


def read_inputs(context: RequestContext, value: str | list[str | int | list[int]], field: str) -> list[Input]:
    """Read the inputs of a request and record them in its facts. A flat list of numbers is one input, as in TEI and
    OpenAI.

    Raises WrongShape.
    """
    inputs = _to_inputs(value, field)
    record_inputs(context, len(inputs), is_batch=not isinstance(value, str) and inputs[:1] != [value])
    return inputs


def _to_inputs(value: str | list[str | int | list[int]], field: str) -> list[Input]:
    if isinstance(value, str):
        return [value]
    if not value:
        return []
    numbers = sum(isinstance(item, int) for item in value)
    if numbers == len(value):
        return [value]  # type: ignore[list-item]  # all of them are int, which the checker cannot see
    if numbers:
        raise WrongShape(
            f"`{field}` mixes numbers with texts; token ids of a batch go into arrays of their own"
        )
    return value  # type: ignore[return-value]  # none of them is int


def read_texts(context: RequestContext, value: str | list[str]) -> list[str]:
    """Read the texts of a request and record them in its facts."""
    texts = [value] if isinstance(value, str) else value
    record_inputs(context, len(texts), is_batch=not isinstance(value, str))
    return texts


def read_ids(value: list[int | list[int]], field: str) -> list[list[int]]:
    """Read arrays of token ids; a flat array is one input. Raises WrongShape."""
    if all(isinstance(item, int) for item in value):
        return [value]  # type: ignore[list-item]  # all of them are int, which the checker cannot see
    if any(isinstance(item, int) for item in value):
        raise WrongShape(f"`{field}` mixes token ids with arrays of them")
    return value  # type: ignore[return-value]  # none of them is int


def record_inputs(context: RequestContext, count: int, *, is_batch: bool) -> None:
    """Record in the request's facts how many inputs it has."""
    context.facts.inputs = count
    context.facts.is_batch = is_batch


def truncation_side(direction: str | None) -> Side:
    """Return the side on which texts are truncated; None means right, as in TEI."""
    return "left" if direction in ("Left", "left") else "right"


def check_dimensions(card: ModelCard, **fields: int | None) -> None:
    """Raise InvalidInput for more dimensions than the vectors have, by the name of the field that asks for them."""
    for field, dimensions in fields.items():
        if dimensions is not None and dimensions > card.pipeline.dimensions:
            raise InvalidInput(
                f"`{field}` must lie between 1 and {card.pipeline.dimensions}, got {dimensions}"
            )


def merge_aliases(**aliases: T | None) -> T | None:
    """Return the value of fields with the same meaning; None where none of them is set. Raises InvalidInput where they
    differ."""
    present = {field: value for field, value in aliases.items() if value is not None}
    (first, value), *rest = present.items() or ((None, None),)
    for field, alias_value in rest:
        if alias_value != value:
            raise InvalidInput(f"`{first}` and `{field}` mean the same and differ; leave one out")
    return value
