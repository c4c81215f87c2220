"""One request's way: prompt -> tokens -> batches -> pooled vectors -> cut -> normalise.

Every dialect of the API comes through here, so what a request means is decided once. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar, TypeVarTuple

import numpy as np

from embedserve_runtime.config import BatchingSettings
from embedserve_runtime.engines.base import FloatArray, Int32Array
from embedserve_runtime.errors import (
    BatchTooLarge,
    EmptyInput,
    InvalidInput,
    NotFinite,
    UnknownPrompt,
    VectorSpaceMismatch,
    WrongModelKind,
)
from embedserve_runtime.heads.dense import cut, normalize
from embedserve_runtime.heads.sparse import prune
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.results import Output, Results, SparseVector
from embedserve_runtime.scheduling.dispatcher import Dispatcher
from embedserve_runtime.scheduling.work import Order
from embedserve_runtime.tokenizing import CutRules, Input, Side, TextTokenizer, Token

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

# Work up to these sizes is cheaper on the event loop than the hop to a thread: some 0.2 ms each.
INLINE_CHARACTERS = 512
INLINE_BYTES = 4 * 131_072
# Characters of a request whose tokens are listed one by one: some 200 MB of objects.
LISTED_CHARACTERS = 1_000_000
# Tokenising is parallel inside the library; the second thread keeps a small request from waiting for a large
# one.
TOKENIZER_THREADS = 2
OUTPUT_NAMES = {
    Output.DENSE: "dense vectors",
    Output.LOGITS: "scores",
    Output.SPARSE: "sparse vectors",
    Output.MULTI_VECTOR: "multi-vectors",
    Output.HIDDEN: "hidden states",
}
NO_ROWS: FloatArray = np.zeros((0, 0), dtype=np.float32)


@dataclass(frozen=True, slots=True)
class EmbedQuery:
    """What a client asks for, in no dialect.

    inputs: texts, or id arrays that are used as they are.
    truncate, normalize, dimensions: None takes the service's own.
    prompt: text put before every input, instead of one by its name.
    vector_space: the identity that the client expects, if it says so.
    timeout: seconds after which the client wants no answer any more; the service's own bound holds too.
    outputs: kinds of results, all from one forward pass.
    top_k, threshold: what is kept of sparse vectors.
    """

    inputs: Sequence[Input]
    truncate: bool | None = None
    side: Side = "right"
    prompt_name: str | None = None
    prompt: str | None = None
    normalize: bool | None = None
    dimensions: int | None = None
    vector_space: str | None = None
    timeout: float | None = None
    outputs: Output = Output.DENSE
    top_k: int | None = None
    threshold: float = 0.0


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds; queue and engine are means over the inputs."""

    total: float
    tokenize: float
    queue: float
    engine: float


@dataclass(frozen=True, slots=True)
class Embedded:
    """What was asked for, in the order of the inputs; all numbers are finite.

    dense: float32, contiguous, one row an input. multi_vectors, hidden: an array (tokens, size) for each input.
    Each is empty if it was not asked for.
    lengths: tokens of each input after truncation, prompt and special tokens included.
    """

    dense: FloatArray
    sparse: Sequence[SparseVector]
    multi_vectors: Sequence[FloatArray]
    hidden: Sequence[FloatArray]
    lengths: Sequence[int]
    characters: int
    timings: Timings

    @property
    def tokens(self) -> int:
        return sum(self.lengths)


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
        prompt = self.prompt_of(query)
        characters = sum(map(len, query.inputs))
        sequences = await self._tokenize(query, prompt, characters)
        tokenized = self._clock()
        lengths = [len(sequence) for sequence in sequences]
        if query.outputs & (Output.HIDDEN | Output.MULTI_VECTOR):
            self._check_hidden(sum(lengths))
        timeout = self.batching.request_timeout_seconds
        if query.timeout is not None:
            timeout = min(timeout, query.timeout)
        order = Order(sequences, query.outputs, self.batching.max_hidden_bytes)
        done = await self.dispatcher.submit(order, started + timeout)
        results = done.results
        if results.nbytes <= INLINE_BYTES:
            dense, sparse = self._finish(results, query)
        else:
            dense, sparse = await self._in_thread(self._finish, results, query)
        timings = Timings(
            total=self._clock() - started,
            tokenize=tokenized - started,
            queue=done.queue_seconds,
            engine=done.engine_seconds,
        )
        return Embedded(
            dense, sparse, results.multi_vectors or (), results.hidden or (), lengths, characters, timings
        )

    async def locate(self, query: EmbedQuery) -> list[list[Token]]:
        """The tokens that `embed` makes of the inputs, with their places in prompt + input."""
        self._check(query)
        _check_listed(query.inputs)
        rules = CutRules(self._truncates(query), query.side)
        return await self._in_thread(self._tokenizer.locate, query.inputs, self.prompt_of(query), rules)

    async def tokenize(
        self, texts: Sequence[str], prompt_name: str | None, *, add_special_tokens: bool
    ) -> list[list[Token]]:
        """All tokens of each text, uncut, with their places in prompt + text."""
        self.check_count(len(texts))
        _check_listed(texts)
        prompt = self.prompt_of(EmbedQuery(texts, prompt_name=prompt_name))
        return await self._in_thread(
            lambda: self._tokenizer.tokenize(texts, prompt, add_special_tokens=add_special_tokens)
        )

    async def decode(self, sequences: Sequence[list[int]], *, skip_special_tokens: bool) -> list[str]:
        self.check_count(len(sequences))
        return await self._in_thread(
            lambda: self._tokenizer.decode(sequences, skip_special_tokens=skip_special_tokens)
        )

    def check_count(self, count: int) -> None:
        """Refuse a request for the number of its inputs. Raises EmptyInput, BatchTooLarge."""
        if not count:
            raise EmptyInput("the list of inputs is empty")
        largest = self.batching.max_client_batch_size
        if largest is not None and count > largest:
            raise BatchTooLarge(f"batch size {count} > maximum allowed batch size {largest}")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _check(self, query: EmbedQuery) -> None:
        """Everything that can be refused before any work is done."""
        card = self.card
        if query.vector_space is not None and query.vector_space != card.vector_space:
            raise VectorSpaceMismatch(
                f"expected vector space {query.vector_space}; this service makes {card.vector_space}"
            )
        for output in query.outputs & ~card.outputs:
            given = " and ".join(OUTPUT_NAMES[one] for one in card.outputs)
            raise WrongModelKind(f"this model gives no {OUTPUT_NAMES[output]}; it gives {given}")
        dimensions = query.dimensions
        if dimensions is not None and not 1 <= dimensions <= card.pipeline.dimensions:
            raise InvalidInput(
                f"`dimensions` must lie between 1 and {card.pipeline.dimensions}, got {dimensions}"
            )
        self.check_count(len(query.inputs))
        self.dispatcher.check_room(len(query.inputs))

    def _check_hidden(self, tokens: int) -> None:
        size = tokens * self.card.encoder.hidden_size * 4
        if size > self.batching.max_hidden_bytes:
            raise BatchTooLarge(
                f"the states of {tokens} tokens take {size} bytes; one request may ask for "
                f"{self.batching.max_hidden_bytes}. Send fewer or shorter inputs"
            )

    def prompt_of(self, query: EmbedQuery) -> str:
        """The text put before each input. Raises UnknownPrompt, InvalidInput."""
        name = query.prompt_name
        if query.prompt is not None:
            if name is not None:
                raise InvalidInput("`prompt` and `prompt_name` exclude each other")
            _check_texts_only(query)
            return query.prompt
        if name is None:
            default = self.card.default_prompt
            return "" if default is None else self.card.prompts[default]
        if name not in self.card.prompts:
            known = ", ".join(f'"{known}"' for known in self.card.prompts)
            raise UnknownPrompt(f"prompt name {name!r} does not exist. Available prompts: [{known}]")
        _check_texts_only(query)
        return self.card.prompts[name]

    def _truncates(self, query: EmbedQuery) -> bool:
        return self.batching.auto_truncate if query.truncate is None else query.truncate

    async def _tokenize(self, query: EmbedQuery, prompt: str, characters: int) -> list[Int32Array]:
        rules = CutRules(self._truncates(query), query.side)
        if characters + len(prompt) * len(query.inputs) <= INLINE_CHARACTERS:
            return self._tokenizer.encode(query.inputs, prompt, rules)
        return await self._in_thread(self._tokenizer.encode, query.inputs, prompt, rules)

    def _finish(self, results: Results, query: EmbedQuery) -> tuple[FloatArray, list[SparseVector]]:
        """Dense vectors and sparse ones, as the query wants them. Raises NotFinite."""
        _check_finite((*(results.hidden or ()), *(results.multi_vectors or ())))
        sparse = results.sparse or ()
        _check_finite(vector.values for vector in sparse)
        kept = [prune(vector, top_k=query.top_k, threshold=query.threshold) for vector in sparse]
        if results.dense is None:
            return NO_ROWS, kept
        pipeline = self.card.pipeline
        vectors = cut(results.dense, query.dimensions or pipeline.dimensions)
        _check_finite((vectors,))
        if pipeline.normalize if query.normalize is None else query.normalize:
            vectors = normalize(vectors)
        return np.ascontiguousarray(vectors), kept

    async def _in_thread(self, function: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)


def _check_listed(inputs: Sequence[Input]) -> None:
    """Listing tokens takes a Python object for each, where vectors take none."""
    characters = sum(map(len, inputs))
    if characters > LISTED_CHARACTERS:
        raise BatchTooLarge(
            f"tokens are listed for {LISTED_CHARACTERS} characters in one request, got {characters}"
        )


def _check_texts_only(query: EmbedQuery) -> None:
    if not all(isinstance(item, str) for item in query.inputs):
        raise InvalidInput("a prompt cannot be put before token ids; send text, or ask for no prompt")


def _check_finite(arrays: Iterable[FloatArray]) -> None:
    if not all(np.isfinite(array).all() for array in arrays):
        raise NotFinite("the model gave a value that is not a finite number; no vector is returned")
