"""What all dialects read off a request and say with an answer."""

from __future__ import annotations

import math
from typing import NamedTuple

from embedserve_runtime.api.asgi import Exchange, Header
from embedserve_runtime.api.errors import WrongShape
from embedserve_runtime.api.schemas import inputs_of
from embedserve_runtime.errors import InvalidInput, VectorSpaceMismatch
from embedserve_runtime.service import Effort, EmbeddingService
from embedserve_runtime.tokenizing import Input, Side

VECTOR_SPACE = b"x-embedserve-vector-space"
# In a request's `model`, between the name and the space that the client insists on: `docs@vs1-0123456789abcdef0123`.
PINNED = "@vs1-"
TIMEOUT = b"x-embedserve-timeout"

_RESULT_LINES = VECTOR_SPACE + (
    b": %b\r\nx-compute-characters: %d\r\nx-compute-tokens: %d\r\nx-compute-time: %d\r\nx-total-time: %d\r\n"
    b"x-tokenization-time: %d\r\nx-queue-time: %d\r\nx-inference-time: %d\r\n"
)


class Terms(NamedTuple):
    """What the client insists on: a vector space, and the seconds that it will wait."""

    vector_space: str | None
    timeout: float | None


def terms_of(exchange: Exchange, model: str | None = None) -> Terms:
    """model: of the request's body, which may name a space too. Raises InvalidInput, VectorSpaceMismatch."""
    header = exchange.headers.get(VECTOR_SPACE)
    space = header.decode("latin-1") if header is not None else None
    pinned = _pinned_by(model)
    if pinned is not None and space not in (None, pinned):
        raise VectorSpaceMismatch(
            f"`model` asks for vector space {pinned} and X-Embedserve-Vector-Space for {space}; leave one out"
        )
    return Terms(space if pinned is None else pinned, _timeout(exchange))


def _pinned_by(model: str | None) -> str | None:
    if model is None or PINNED not in model:
        return None
    return model[model.rindex(PINNED) + 1 :]


def _timeout(exchange: Exchange) -> float | None:
    value = exchange.headers.get(TIMEOUT)
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise InvalidInput("X-Embedserve-Timeout must be a number of seconds greater than 0")
    return seconds


def read_inputs(exchange: Exchange, value: str | list[str | int | list[int]], field: str) -> list[Input]:
    """The inputs of a request, noted in its facts."""
    inputs = inputs_of(value, field)
    note_inputs(exchange, len(inputs), is_batch=not isinstance(value, str) and inputs[:1] != [value])
    return inputs


def read_texts(exchange: Exchange, value: str | list[str]) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    note_inputs(exchange, len(texts), is_batch=not isinstance(value, str))
    return texts


def read_ids(value: list[int | list[int]], field: str) -> list[list[int]]:
    """A flat array of ids is one input."""
    if all(isinstance(item, int) for item in value):
        return [value]  # type: ignore[list-item]  # all of them are int, which the checker cannot see
    if any(isinstance(item, int) for item in value):
        raise WrongShape(f"`{field}` mixes token ids with arrays of them")
    return value  # type: ignore[return-value]  # none of them is int


def note_inputs(exchange: Exchange, count: int, *, is_batch: bool) -> None:
    exchange.facts.inputs = count
    exchange.facts.is_batch = is_batch


def side_of(direction: str) -> Side:
    return "left" if direction in ("Left", "left") else "right"


def note_answer(exchange: Exchange, effort: Effort) -> None:
    """Note what an answer took in the facts of its request."""
    facts, timings = exchange.facts, effort.timings
    facts.lengths = effort.lengths
    facts.tokenize_seconds = timings.tokenize
    facts.queue_seconds = timings.queue
    facts.engine_seconds = timings.engine
    facts.service_seconds = timings.total


def result_lines(exchange: Exchange, service: EmbeddingService, effort: Effort) -> bytes:
    """Lines of headers: the vector space, and TEI's counters and times in whole milliseconds. Notes the facts too."""
    note_answer(exchange, effort)
    timings = effort.timings
    total = timings.total * 1000
    return _RESULT_LINES % (
        service.card.vector_space.encode(),
        effort.characters,
        effort.tokens,
        total,
        total,
        timings.tokenize * 1000,
        timings.queue * 1000,
        timings.engine * 1000,
    )


def space_header(service: EmbeddingService) -> Header:
    return (VECTOR_SPACE, service.card.vector_space.encode())
