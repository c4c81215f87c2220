"""One request's way: prompt -> tokens -> batches -> pooled vectors -> cut -> normalise.

Every dialect of the API comes through here, so what a request means is decided once. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar, TypeVarTuple

import numpy as np

from embedserve_runtime.config import BatchingSettings
from embedserve_runtime.engines.base import FloatArray, Int32Array
from embedserve_runtime.errors import (
    BatchTooLarge,
    EmptyInput,
    EngineFailure,
    InvalidInput,
    UnknownPrompt,
    VectorSpaceMismatch,
)
from embedserve_runtime.heads.dense import cut, normalize
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.heads.description import Task
from embedserve_runtime.scheduling.dispatcher import Dispatcher
from embedserve_runtime.tokenizing import CutRules, Input, Side, TextTokenizer

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

# Work up to these sizes is cheaper on the event loop than the hop to a thread: some 0.2 ms each.
INLINE_CHARACTERS = 512
INLINE_VALUES = 131_072
# Tokenising is parallel inside the library; the second thread keeps a small request from waiting for a large
# one.
TOKENIZER_THREADS = 2


@dataclass(frozen=True, slots=True)
class EmbedQuery:
    """What a client asks for, in no dialect.

    inputs: texts, or id arrays that are used as they are.
    truncate, normalize, dimensions: None takes the service's own.
    vector_space: the identity that the client expects, if it says so.
    """

    inputs: Sequence[Input]
    truncate: bool | None = None
    side: Side = "right"
    prompt_name: str | None = None
    normalize: bool | None = None
    dimensions: int | None = None
    vector_space: str | None = None


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds; queue and engine are means over the inputs."""

    total: float
    tokenize: float
    queue: float
    engine: float


@dataclass(frozen=True, slots=True)
class Embedded:
    """vectors: float32, finite, contiguous, one row an input.

    tokens: after truncation, prompt and special tokens included.
    """

    vectors: FloatArray
    tokens: int
    characters: int
    timings: Timings


class EmbeddingService:
    """A loaded model behind its tokenizer and its queue."""

    def __init__(
        self,
        card: ModelCard,
        tokenizer: TextTokenizer,
        dispatcher: Dispatcher,
        batching: BatchingSettings,
        clock: Callable[[], float],
    ) -> None:
        self.card = card
        self.dispatcher = dispatcher
        self.batching = batching
        self.max_length = tokenizer.max_length
        self._tokenizer = tokenizer
        self._clock = clock
        self._threads = ThreadPoolExecutor(TOKENIZER_THREADS, thread_name_prefix="tokenizer")

    async def embed(self, query: EmbedQuery) -> Embedded:
        """Raises any RequestError."""
        started = self._clock()
        self._check(query)
        prompt = self._prompt(query)
        characters = sum(map(len, query.inputs))
        sequences = await self._tokenize(query, prompt, characters)
        tokenized = self._clock()
        done = await self.dispatcher.submit(sequences, started + self.batching.request_timeout_seconds)
        if done.rows.size <= INLINE_VALUES:
            vectors = self._finish(done.rows, query)
        else:
            vectors = await self._in_thread(self._finish, done.rows, query)
        timings = Timings(
            total=self._clock() - started,
            tokenize=tokenized - started,
            queue=done.queue_seconds,
            engine=done.engine_seconds,
        )
        return Embedded(vectors, sum(map(len, sequences)), characters, timings)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _check(self, query: EmbedQuery) -> None:
        """Everything that can be refused before any work is done."""
        card = self.card
        if query.vector_space is not None and query.vector_space != card.vector_space:
            raise VectorSpaceMismatch(
                f"expected vector space {query.vector_space}; this service makes {card.vector_space}"
            )
        if card.task is not Task.EMBED:
            raise InvalidInput(f"this service does not make dense vectors: its task is {card.task}")
        count = len(query.inputs)
        if not count:
            raise EmptyInput("the list of inputs is empty")
        largest = self.batching.max_client_batch_size
        if largest is not None and count > largest:
            raise BatchTooLarge(f"batch size {count} > maximum allowed batch size {largest}")
        dimensions = query.dimensions
        if dimensions is not None and not 1 <= dimensions <= card.pipeline.dimensions:
            raise InvalidInput(
                f"`dimensions` must lie between 1 and {card.pipeline.dimensions}, got {dimensions}"
            )
        self.dispatcher.check_room(count)

    def _prompt(self, query: EmbedQuery) -> str:
        name = query.prompt_name
        if name is None:
            default = self.card.default_prompt
            return "" if default is None else self.card.prompts[default]
        if name not in self.card.prompts:
            known = ", ".join(f'"{known}"' for known in self.card.prompts)
            raise UnknownPrompt(f"prompt name {name!r} does not exist. Available prompts: [{known}]")
        if not all(isinstance(item, str) for item in query.inputs):
            raise InvalidInput(
                "a prompt cannot be put before token ids; send text, or leave `prompt_name` out"
            )
        return self.card.prompts[name]

    async def _tokenize(self, query: EmbedQuery, prompt: str, characters: int) -> list[Int32Array]:
        truncate = self.batching.auto_truncate if query.truncate is None else query.truncate
        rules = CutRules(truncate, query.side)
        if characters + len(prompt) * len(query.inputs) <= INLINE_CHARACTERS:
            return self._tokenizer.encode(query.inputs, prompt, rules)
        return await self._in_thread(self._tokenizer.encode, query.inputs, prompt, rules)

    def _finish(self, rows: FloatArray, query: EmbedQuery) -> FloatArray:
        pipeline = self.card.pipeline
        vectors = cut(rows, query.dimensions or pipeline.dimensions)
        if not np.isfinite(vectors).all():
            raise EngineFailure("the model gave a value that is not a finite number; no vector is returned")
        if pipeline.normalize if query.normalize is None else query.normalize:
            vectors = normalize(vectors)
        return np.ascontiguousarray(vectors)

    async def _in_thread(self, function: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)
