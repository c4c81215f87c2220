"""Messages between a front end and the engine's process.

Each is a frozen struct, tagged with the name of its class; `codec` says how arrays in it are carried.
Requests have the numbers that their front end gave them.
"""

from __future__ import annotations

import math
from itertools import accumulate
from typing import Annotated, TypeAlias

import numpy as np
from msgspec import Meta, Struct

from embedserve_runtime import errors
from embedserve_runtime.errors import EmbedserveError, EngineFailure, Overloaded, RequestError
from embedserve_runtime.forward.arrays import BoolArray, Int32Array
from embedserve_runtime.forward.batch import FlatTokens, PackedBatch, TokenSequence
from embedserve_runtime.forward.outputs import OutputKind
from embedserve_runtime.scheduling.batches import BatchRequest, CompletedRequest
from embedserve_runtime.scheduling.clients import Client
from embedserve_runtime.scheduling.policy import QueueDepth

HEARTBEAT_SECONDS = 2.0
# Of a sequence; positions are 32 bits wide.
MAX_SEQUENCE_TOKENS = 2**31 - 1


class Message(Struct, frozen=True, array_like=True, tag=True):
    """The base of all messages."""


# -- from a front end


class Hello(Message, frozen=True):
    """The first message of a front end: from here on messages can be sent to it."""


class Ready(Message, frozen=True):
    """The front end has its tokenizer and can answer requests."""


class Heartbeat(Message, frozen=True):
    """The front end's event loop is running; sent every `HEARTBEAT_SECONDS`."""


class Submit(Message, frozen=True):
    """A request to run, sent by a front end.

    deadline: of the monotonic clock, which all processes of a machine share.

    lengths: of its sequences, in tokens. repeats: how many times the client's request has each of them; None: once. The
    other arrays are those of a `PackedBatch`.
    """

    request_id: int
    deadline: float
    outputs: OutputKind
    max_bytes: int | None
    client: Client | None
    lengths: list[Annotated[int, Meta(ge=1, le=MAX_SEQUENCE_TOKENS)]]
    token_ids: Int32Array
    token_types: Int32Array | None
    pool_starts: Int32Array | None
    is_query_mask: BoolArray | None
    attended_lengths: Int32Array | None
    tasks: Int32Array | None
    repeats: list[Annotated[int, Meta(ge=1)]] | None = None

    @classmethod
    def build(cls, request_id: int, batch_request: BatchRequest, deadline: float) -> Submit:
        batch = PackedBatch.pack(batch_request.sequences)
        return cls(
            request_id,
            deadline,
            batch_request.outputs,
            batch_request.max_bytes,
            batch_request.client,
            batch.lengths.tolist(),
            batch.token_ids,
            batch.token_types,
            batch.pool_starts,
            batch.queries,
            batch.attended_lengths,
            batch.tasks,
            None if batch_request.repeats is None else list(batch_request.repeats),
        )

    def build_batch_request(self) -> BatchRequest:
        """Build a request whose sequences make the same batch.

        Raises ValueError when the message contradicts itself.
        """
        if math.isnan(self.deadline) or not self.outputs:
            raise ValueError(f"a request with the deadline {self.deadline} for {self.outputs}")
        cu_seqlens = np.array([0, *accumulate(self.lengths)], dtype=np.int32)
        ids, tokens, sequences = self.token_ids, (int(cu_seqlens[-1]),), (len(self.lengths),)
        if not self.lengths or ids.shape != tokens:
            raise ValueError(f"{ids.shape} token ids of {sequences} sequences with {tokens} tokens")
        # Engines get arrays that can be written: torch warns of others.
        flat = FlatTokens(ids if ids.flags.writeable else ids.copy(), cu_seqlens)
        marks = (self.pool_starts, self.is_query_mask, self.attended_lengths, self.tasks)
        if self.repeats is not None and len(self.repeats) != len(self.lengths):
            raise ValueError(f"{len(self.repeats)} repeats of {sequences} sequences")
        if self.token_types is None and all(mark is None for mark in marks):
            return BatchRequest(flat, self.outputs, self.max_bytes, self.client, self.repeats)
        _check_shape(self.token_types, tokens)
        for mark in marks:
            _check_shape(mark, sequences)
        return BatchRequest(self._marked(flat), self.outputs, self.max_bytes, self.client, self.repeats)

    def _marked(self, ids: FlatTokens) -> list[TokenSequence]:
        count = len(ids)
        types = [None] * count if self.token_types is None else FlatTokens(self.token_types, ids.cu_seqlens)
        pool_starts = [0] * count if self.pool_starts is None else self.pool_starts.tolist()
        queries = [False] * count if self.is_query_mask is None else self.is_query_mask.tolist()
        attended = [None] * count if self.attended_lengths is None else self.attended_lengths.tolist()
        tasks = [0] * count if self.tasks is None else self.tasks.tolist()
        return [
            TokenSequence(*fields)
            for fields in zip(ids, types, pool_starts, queries, attended, tasks, strict=True)
        ]


class Abort(Message, frozen=True):
    """The end of a request whose client waits no longer."""

    request_id: int


class MeterReused(Message, frozen=True):
    """The number of inputs of a client that were answered by what ran for another request.

    A RequestCompleted without results answers it, or a RequestFailed where the client has used up its rate.
    """

    request_id: int
    client: Client
    inputs: Annotated[int, Meta(ge=1)]
    tokens: Annotated[int, Meta(ge=0)]


class MetricsPageRequest(Message, frozen=True):
    """A scrape that came in at a front end; the engine's process has all counts."""

    request_id: int


FrontEndMessage: TypeAlias = Hello | Ready | Heartbeat | Submit | Abort | MeterReused | MetricsPageRequest


# -- from the engine's process


class Configure(Message, frozen=True):
    """The settings of a front end. settings: a pickled `FrontEndSettings`."""

    settings: bytes


class StatusChanged(Message, frozen=True):
    """The status of the server, for front ends.

    status: a pickled `ServerStatus`.
    """

    status: bytes


class ModelOpened(Message, frozen=True):
    """There is a model to serve. model: a pickled `LoadedModel`."""

    model: bytes


class QueueDepthChanged(Message, frozen=True):
    """The depth of the queue, for front ends."""

    queue_depth: QueueDepth


class RequestCompleted(Message, frozen=True):
    """The results of a request."""

    request_id: int
    completed: CompletedRequest


class RequestFailed(Message, frozen=True):
    """The error that a request has ended with. retry_after: seconds, of Overloaded and RateLimited only."""

    request_id: int
    reason: str
    message: str
    retry_after: float

    @classmethod
    def build(cls, request_id: int, error: EmbedserveError) -> RequestFailed:
        retry_after = error.retry_after if isinstance(error, Overloaded) else 0.0
        # A message may quote half of a surrogate pair, which UTF-8 cannot say.
        message = error.message.encode("utf-8", "replace").decode()
        return cls(request_id, error.reason, message, retry_after)

    def build_error(self) -> EmbedserveError:
        kind = _REQUEST_ERRORS.get(self.reason, EngineFailure)
        if issubclass(kind, Overloaded):
            return kind(self.message, self.retry_after)
        return kind(self.message)


class MetricsPageResponse(Message, frozen=True):
    """The answer to a MetricsPageRequest."""

    request_id: int
    page: bytes


class Stop(Message, frozen=True):
    """Accept no more, answer what has been accepted, and end."""


EngineMessage: TypeAlias = (
    Configure
    | StatusChanged
    | ModelOpened
    | QueueDepthChanged
    | RequestCompleted
    | RequestFailed
    | MetricsPageResponse
    | Stop
)


def _check_shape(marks: Int32Array | BoolArray | None, shape: tuple[int]) -> None:
    if marks is not None and marks.shape != shape:
        raise ValueError(f"marks of shape {marks.shape} for {shape}")


def _request_errors() -> dict[str, type[EmbedserveError]]:
    """Return error classes by reason. All but Overloaded and its subclasses are constructed from a message alone."""
    classes: dict[str, type[EmbedserveError]] = {}
    waiting: list[type[EmbedserveError]] = [RequestError]
    while waiting:
        kind = waiting.pop()
        if kind.__module__ == errors.__name__:
            classes[kind.reason] = kind
        waiting += kind.__subclasses__()
    return classes


_REQUEST_ERRORS = _request_errors()
