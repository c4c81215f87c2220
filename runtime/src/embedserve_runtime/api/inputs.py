"""What all dialects read off a request: its inputs, its prompt, and what the client insists on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from embedserve_runtime.api.context import RequestContext
from embedserve_runtime.api.errors import WrongShape
from embedserve_runtime.api.responses import VECTOR_SPACE
from embedserve_runtime.errors import InvalidInput, VectorSpaceMismatch
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.service import Role
from embedserve_runtime.tokenizing import Input, Side

PINNED = "@vs1-"
"""In a request's `model`, between its name and the space that the client insists on: `docs@vs1-0123456789abcdef0123`.
"""
TIMEOUT = b"x-embedserve-timeout"
PROMPT_NAMES: Mapping[str, tuple[str, ...]] = {
    "search_query": ("search_query", "query"),
    "search_document": ("search_document", "document", "passage"),
    "classification": ("classification",),
    "clustering": ("clustering",),
}
"""Names that models give the prompt for each of Cohere's input types; the first that the model has is taken."""


class RequestOptions(NamedTuple):
    """What the client insists on: a vector space, and the seconds that it will wait."""

    vector_space: str | None
    timeout: float | None


def request_options(context: RequestContext, model: str | None = None) -> RequestOptions:
    """model: of the request's body, which may name a space too. Raises InvalidInput, VectorSpaceMismatch."""
    header = context.headers.get(VECTOR_SPACE)
    space = header.decode("latin-1") if header is not None else None
    pinned = _space_in(model)
    if pinned is not None and space not in (None, pinned):
        raise VectorSpaceMismatch(
            f"`model` asks for vector space {pinned} and X-Embedserve-Vector-Space for {space}; leave one out"
        )
    return RequestOptions(space if pinned is None else pinned, _timeout(context))


def _space_in(model: str | None) -> str | None:
    if model is None or PINNED not in model:
        return None
    return model[model.rindex(PINNED) + 1 :]


def _timeout(context: RequestContext) -> float | None:
    value = context.headers.get(TIMEOUT)
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise InvalidInput("X-Embedserve-Timeout must be a number of seconds greater than 0")
    return seconds


def read_inputs(context: RequestContext, value: str | list[str | int | list[int]], field: str) -> list[Input]:
    """The inputs of a request, noted in its facts. A flat list of numbers is one input, as in TEI and OpenAI.

    Raises WrongShape.
    """
    inputs = _inputs_of(value, field)
    note_inputs(context, len(inputs), is_batch=not isinstance(value, str) and inputs[:1] != [value])
    return inputs


def _inputs_of(value: str | list[str | int | list[int]], field: str) -> list[Input]:
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
    """The texts of a request, noted in its facts."""
    texts = [value] if isinstance(value, str) else value
    note_inputs(context, len(texts), is_batch=not isinstance(value, str))
    return texts


def read_ids(value: list[int | list[int]], field: str) -> list[list[int]]:
    """Arrays of token ids; a flat array is one input. Raises WrongShape."""
    if all(isinstance(item, int) for item in value):
        return [value]  # type: ignore[list-item]  # all of them are int, which the checker cannot see
    if any(isinstance(item, int) for item in value):
        raise WrongShape(f"`{field}` mixes token ids with arrays of them")
    return value  # type: ignore[return-value]  # none of them is int


def note_inputs(context: RequestContext, count: int, *, is_batch: bool) -> None:
    """Note in the request's facts how many inputs it has."""
    context.facts.inputs = count
    context.facts.is_batch = is_batch


def side_of(direction: str) -> Side:
    """The side of a text that is cut off."""
    return "left" if direction in ("Left", "left") else "right"


def prompt_for_input_type(input_type: str | None, card: ModelCard) -> tuple[str | None, str | None]:
    """Name of the prompt for one of Cohere's input types, or its text. Raises InvalidInput.

    Without a prompt for the type the default one applies, unless that is the prompt of another type: a query's prompt
    before a document would be worse than none.
    """
    if input_type is None:
        return None, None
    if input_type not in PROMPT_NAMES:
        raise InvalidInput("images cannot be embedded: the model takes text")
    for name in PROMPT_NAMES[input_type]:
        if name in card.prompts:
            return name, None
    others = {name for names in PROMPT_NAMES.values() for name in names}
    return None, "" if card.default_prompt in others else None


def prompt_for_role(
    role: Role | None, name: str | None, text: str | None, card: ModelCard
) -> tuple[str | None, str | None]:
    """Name of the prompt, or its text: the one asked for, else that of what the inputs are."""
    if role is None or name is not None or text is not None:
        return name, text
    return prompt_for_input_type(f"search_{role}", card)
