"""Answers requests through tokenizer, queue and engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple, TypeVar, TypeVarTuple

import numpy as np

from embedserve_runtime.config import BatchingSettings
from embedserve_runtime.errors import (
    BatchTooLarge,
    DeadlineExceeded,
    EmptyInput,
    InvalidInput,
    VectorSpaceMismatch,
    WrongModelKind,
)
from embedserve_runtime.forward.arrays import Int32Array
from embedserve_runtime.forward.batch import Tokens, get_lengths
from embedserve_runtime.forward.outputs import ModelOutput, OutputKind
from embedserve_runtime.heads.classification import apply_score_function
from embedserve_runtime.model.heads.description import ClassifierHead
from embedserve_runtime.scheduling.batches import BatchRequest, RequestDispatcher
from embedserve_runtime.service.coalescing import RequestCoalescer, can_coalesce
from embedserve_runtime.service.current_client import begin_part, get_client
from embedserve_runtime.service.fair_thread_pool import FairThreadPool
from embedserve_runtime.service.limits import check_hidden_size, check_listing_size
from embedserve_runtime.service.loaded_model import LoadedModel
from embedserve_runtime.service.micro_batching import MAX_CHARACTERS, InputRendering, MicroBatcher, is_small
from embedserve_runtime.service.output_names import OUTPUT_NAMES, name_outputs
from embedserve_runtime.service.output_options import check_output_options
from embedserve_runtime.service.pair_budgets import MIN_DOCUMENT_TOKENS, shorten_pairs
from embedserve_runtime.service.postprocessing import check_finite, postprocess_dense, postprocess_outputs
from embedserve_runtime.service.roles import is_query, resolve_prompt, select_card
from embedserve_runtime.service.spans import SpanTokens, check_spans, find_span_tokens
from embedserve_runtime.service.types import (
    ChunkedResult,
    EmbedQuery,
    EmbedResult,
    Pair,
    RequestUsage,
    ScoreQuery,
    ScoreResult,
    Timings,
)
from embedserve_runtime.tokenizing import (
    InputEncoders,
    TextEncoder,
    TextTokenizer,
    Token,
    TruncationRules,
)
from embedserve_runtime.tokenizing.input_encoders import InputEncoder

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

# Work up to these sizes is done on the event loop, where it is cheaper than the hop to a thread: some 0.2 ms each.
MAX_INLINE_CHARACTERS = MAX_CHARACTERS
MAX_INLINE_BYTES = 4 * 131_072
# The library tokenizes in parallel; the second thread keeps a small request from waiting for a large one.
TOKENIZER_THREADS = 2


class _RunResult(NamedTuple):
    results: ModelOutput
    usage: RequestUsage


class InferenceService:
    """A loaded model with its tokenizer and its queue.

    other_tasks: services of the same model for its other tasks, with the same tokenizer and queue.
    """

    def __init__(
        self,
        model: LoadedModel,
        tokenizer: TextTokenizer,
        dispatcher: RequestDispatcher,
        batching: BatchingSettings,
        clock: Callable[[], float],
    ) -> None:
        self.engines = model.engines
        self.memory = model.memory
        self.card = card = model.card
        self.dispatcher = dispatcher
        self.batching = batching
        self.max_length = tokenizer.max_length
        self._tokenizer = tokenizer
        self._encoders = InputEncoders.for_model(card, tokenizer, model.task_index)
        self._clock = clock
        outputs = card.outputs
        # Cached, since a set operation on flags takes as long as all other checks together.
        self._find_missing_output = cache(lambda requested: next(iter(requested & ~outputs), None))
        self._micro_batcher = MicroBatcher(card, dispatcher, clock)
        self._coalescer = RequestCoalescer(
            self._embed_all, dispatcher.meter_reused, clock, batching.cache_bytes, batching.cache_seconds
        )
        self._threads = FairThreadPool(TOKENIZER_THREADS, "tokenizer", clock)
        self.other_tasks = [
            InferenceService(task_model, tokenizer, dispatcher, batching, clock)
            for task_model in model.list_other_task_models()
        ]

    async def embed(self, query: EmbedQuery) -> EmbedResult:
        """Embed the inputs of a query. Raises any RequestError."""
        started = self._clock()
        self._check_embed(query)
        if can_coalesce(query):
            return await self._coalescer.embed(query, started, self._compute_deadline(started, query.timeout))
        return await self._embed_all(query, started)

    async def _embed_all(self, query: EmbedQuery, started: float) -> EmbedResult:
        """Embed the inputs of a query that was checked. started: when it came."""
        if is_small(query):
            encoder, prompt = self._select_encoder(query), self.resolve_prompt(query)
            rendering = InputRendering(encoder, prompt, self._build_truncation(query))
            deadline = self._compute_deadline(started, query.timeout)
            return await self._micro_batcher.embed(query, rendering, started, deadline)
        prompt = self.resolve_prompt(query)
        characters = sum(map(len, query.inputs))
        sequences = await self._tokenize(
            characters + len(prompt) * len(query.inputs),
            lambda: self._select_encoder(query).encode(query.inputs, prompt, self._build_truncation(query)),
            self._compute_deadline(started, query.timeout),
        )
        max_bytes = self.batching.max_hidden_bytes
        if query.outputs & (OutputKind.HIDDEN | OutputKind.MULTI_VECTOR) or query.spans is not None:
            check_hidden_size(self.card, sum(map(len, sequences)), max_bytes)
        span_tokens = await self._find_span_tokens(query, prompt)
        outputs = query.outputs if query.spans is None else query.outputs | OutputKind.HIDDEN
        request = BatchRequest(sequences, outputs, max_bytes, begin_part(), query.repeats)
        results, usage = await self._submit(request, characters, started, query.timeout)
        if results.nbytes <= MAX_INLINE_BYTES and query.pool_factor is None:
            finished = postprocess_outputs(self.card, results, query, span_tokens)
        else:
            finished = await self.run_in_thread(postprocess_outputs, self.card, results, query, span_tokens)
        return EmbedResult(
            finished.dense,
            usage,
            sparse=finished.sparse,
            multi_vectors=finished.multi_vectors,
            hidden=finished.hidden,
            chunks=finished.chunks,
        )

    async def embed_chunks(self, query: EmbedQuery) -> ChunkedResult:
        """Embed texts that may be longer than the model takes in chunks, each by a vector of its own.

        Raises any RequestError.
        """
        started = self._clock()
        self._check_embed(query)
        check_listing_size(query.inputs)
        encoder, prompt = self._select_encoder(query), self.resolve_prompt(query)
        texts = [text for text in query.inputs if isinstance(text, str)]
        if len(texts) != len(query.inputs) or not isinstance(encoder, TextEncoder):
            raise InvalidInput("`overflow` in chunks takes texts, for a model with a vector of each")
        split = await self._run_until(
            self._compute_deadline(started, query.timeout),
            lambda: encoder.split(texts, prompt, self._build_truncation(query)),
        )
        request = BatchRequest(
            [chunk.sequence for chunks in split for chunk in chunks],
            OutputKind.DENSE,
            client=begin_part(),
        )
        results, usage = await self._submit(request, sum(map(len, texts)), started, query.timeout)
        assert results.dense is not None, "asked for"
        rows = await self.run_in_thread(postprocess_dense, self.card, results.dense, query)
        bounds = np.cumsum([len(chunks) for chunks in split])[:-1]
        return ChunkedResult(
            np.split(rows, bounds),
            [[(chunk.start, chunk.stop) for chunk in chunks] for chunks in split],
            [[chunk.tokens for chunk in chunks] for chunks in split],
            usage,
        )

    async def score(self, query: ScoreQuery) -> ScoreResult:
        """Score the items of a query. Raises any RequestError."""
        started = self._clock()
        head = self._check_score(query)
        characters = sum(len(item) if isinstance(item, str) else sum(map(len, item)) for item in query.items)
        deadline = self._compute_deadline(started, query.timeout)
        sequences = await self._tokenize(characters, lambda: self._encode_items(query), deadline)
        request = BatchRequest(sequences, OutputKind.LOGITS, client=begin_part())
        results, usage = await self._submit(request, characters, started, query.timeout)
        logits = results.logits
        assert logits is not None, "asked for"
        check_finite((logits,))
        scores = logits if query.raw else apply_score_function(logits, head.scores)
        return ScoreResult(scores, logits, head.labels, usage)

    async def locate(self, query: EmbedQuery) -> list[list[Token]]:
        """Return the tokens that `embed` makes of the inputs, with their offsets in prompt + input."""
        self._check_embed(query)
        check_listing_size(query.inputs)
        encoder, prompt = self._select_encoder(query), self.resolve_prompt(query)
        return await self.run_in_thread(encoder.locate, query.inputs, prompt, self._build_truncation(query))

    async def tokenize(self, query: EmbedQuery, *, add_special_tokens: bool) -> list[list[Token]]:
        """Tokenize each text without truncation, by its role's tokenizer; token offsets are those in prompt + text."""
        self.check_count(len(query.inputs))
        check_listing_size(query.inputs)
        tokenizer, prompt = self._select_tokenizer(query), self.resolve_prompt(query)
        texts = [text for text in query.inputs if isinstance(text, str)]
        return await self._run_until(
            self._compute_deadline(self._clock(), query.timeout),
            lambda: tokenizer.tokenize(texts, prompt, add_special_tokens=add_special_tokens),
        )

    async def shorten(
        self, pairs: Sequence[Pair], query_tokens: int | None, document_tokens: int | None
    ) -> list[Pair]:
        """Cut the texts of pairs to at most these numbers of tokens; None leaves them."""
        return await self.run_in_thread(shorten_pairs, self._tokenizer, pairs, query_tokens, document_tokens)

    async def decode(self, query: EmbedQuery, *, skip_special_tokens: bool) -> list[str]:
        """Return the texts of the token ids that the query has as inputs."""
        self.check_count(len(query.inputs))
        tokenizer = self._select_tokenizer(query)
        sequences = [ids for ids in query.inputs if not isinstance(ids, str)]
        return await self._run_until(
            self._compute_deadline(self._clock(), query.timeout),
            lambda: tokenizer.decode(sequences, skip_special_tokens=skip_special_tokens),
        )

    def _select_tokenizer(self, query: EmbedQuery) -> TextTokenizer:
        """Return the tokenizer of the inputs' role. Raises InvalidInput where they can have none."""
        return self._tokenizer.queries if is_query(self.card, query) else self._tokenizer

    def token_texts(self, ids: Int32Array) -> list[str]:
        """Return the vocabulary's own strings."""
        return self._tokenizer.look_up_token_texts(ids)

    def check_space(self, expected: str | None) -> None:
        """Refuse a request that insists on another vector space. Raises VectorSpaceMismatch."""
        if expected is not None and not self.card.makes_space(expected):
            raise VectorSpaceMismatch(
                f"expected vector space {expected}; this service makes {self.card.vector_space}"
            )

    def check_count(self, count: int) -> None:
        """Refuse a request for the number of its inputs. Raises EmptyInput, BatchTooLarge."""
        if not count:
            raise EmptyInput("the list of inputs is empty")
        max_count = self.batching.max_client_batch_size
        if max_count is not None and count > max_count:
            raise BatchTooLarge(f"batch size {count} > maximum allowed batch size {max_count}")

    def check_room(self, count: int) -> None:
        """Refuse a request early, for its number of inputs or a full queue. Raises as `check_count` and the queue."""
        self.check_count(count)
        self.dispatcher.check_room(count, get_client())

    def close(self) -> None:
        for service in self.other_tasks:
            service.close()
        self._threads.close()

    def _check_embed(self, query: EmbedQuery) -> None:
        """Refuse what can be refused before any work is done, in TEI's order."""
        self.check_space(query.vector_space)
        self.check_count(len(query.inputs))
        self.dispatcher.check_room(len(query.inputs), get_client())
        if (lacking := self._find_missing_output(query.outputs)) is not None:
            names = name_outputs(self.card.outputs)
            raise WrongModelKind(f"model gives no {OUTPUT_NAMES[lacking]}: it gives {names}")
        dimensions, pipeline = query.dimensions, select_card(self.card, query).pipeline
        if dimensions is not None and not 1 <= dimensions <= pipeline.dimensions:
            raise InvalidInput(f"`dimensions` must lie between 1 and {pipeline.dimensions}, got {dimensions}")
        if query.pool_factor is not None and not query.pool_factor >= 1:
            raise InvalidInput(f"`pool_factor` must be 1 or more, got {query.pool_factor}")
        check_output_options(query)
        check_spans(self.card, query)

    def _check_score(self, query: ScoreQuery) -> ClassifierHead:
        self.check_space(query.vector_space)
        head = self._require_reranker() if query.ranks else None
        self.check_count(len(query.items))
        self.dispatcher.check_room(len(query.items), get_client())
        head = head or self._require_classifier("classifier")
        takes_instruction = head.template is not None and head.template.takes_instruction
        if query.instruction is not None and not takes_instruction:
            raise InvalidInput("this model takes no `instruction`")
        if head.template is not None and not all(isinstance(item, Pair) for item in query.items):
            raise InvalidInput("this model judges a document by a query; send pairs of texts")
        return head

    def check_ranks(self) -> None:
        """Raise WrongModelKind when the model is not a reranker."""
        if not self.card.ranks_by_vectors:
            self._require_reranker()

    def _require_reranker(self) -> ClassifierHead:
        head = self._require_classifier("re-ranker")
        if len(head.labels) != 1:
            raise WrongModelKind(
                f"model is not a re-ranker model: it has {len(head.labels)} labels; use /predict"
            )
        return head

    def _require_classifier(self, kind: str) -> ClassifierHead:
        """Return the model's classifier. kind: what a refusal calls the model. Raises WrongModelKind."""
        head = self.card.head
        if not isinstance(head, ClassifierHead):
            names = name_outputs(self.card.outputs)
            raise WrongModelKind(f"model is not a {kind} model: it gives {names}; serve a {kind}")
        return head

    def resolve_prompt(self, query: EmbedQuery) -> str:
        """Resolve the text that is put before each input. Raises UnknownPrompt, InvalidInput."""
        return resolve_prompt(self.card, query)

    def _build_truncation(self, query: EmbedQuery | ScoreQuery) -> TruncationRules:
        truncates = self.batching.auto_truncate if query.truncate is None else query.truncate
        max_length = query.max_length if isinstance(query, EmbedQuery) else None
        if query.side is not None:
            return TruncationRules(truncates, query.side, max_length)
        card = select_card(self.card, query) if isinstance(query, EmbedQuery) else self.card
        return TruncationRules(truncates, card.tokenizer.truncation_side, max_length)

    async def _find_span_tokens(self, query: EmbedQuery, prompt: str) -> list[SpanTokens]:
        if query.spans is None:
            return []
        located = await self.locate(query)
        return [
            find_span_tokens(tokens, spans, len(prompt), index)
            for index, (tokens, spans) in enumerate(zip(located, query.spans, strict=True))
        ]

    def _select_encoder(self, query: EmbedQuery) -> InputEncoder:
        return self._encoders.queries if is_query(self.card, query) else self._encoders.documents

    def _encode_items(self, query: ScoreQuery) -> list[Tokens]:
        """Encode each item into a sequence. Single texts get no prompt: the default one is for vectors."""
        rules = self._build_truncation(query)
        texts = [item for item in query.items if isinstance(item, str)]
        pairs = [item for item in query.items if isinstance(item, Pair)]
        if query.query_tokens is not None or query.document_tokens is not None:
            pairs = shorten_pairs(self._tokenizer, pairs, query.query_tokens, query.document_tokens)
            rules = TruncationRules(rules.truncate, rules.side, min_second=MIN_DOCUMENT_TOKENS)
        encoded_texts = iter(self._tokenizer.encode(texts, "", rules))
        max_total = self.dispatcher.limits.queue_tokens
        encoded_pairs = iter(
            self._tokenizer.encode_pairs(pairs, rules, prompt=query.instruction or "", max_total=max_total)
            if pairs
            else ()
        )
        return [next(encoded_texts if isinstance(item, str) else encoded_pairs) for item in query.items]

    async def _tokenize(
        self, characters: int, encode: Callable[[], Sequence[Tokens]], deadline: float
    ) -> Sequence[Tokens]:
        """Encode `characters` characters. Raises DeadlineExceeded at `deadline`, a time of the clock.

        Megabytes without a blank take the tokenizer seconds and cannot be interrupted; the client does not wait for
        them.
        """
        return encode() if characters <= MAX_INLINE_CHARACTERS else await self._run_until(deadline, encode)

    async def _run_until(self, deadline: float, tokenize: Callable[[], T]) -> T:
        """Run a function of the tokenizer in a thread. Raises DeadlineExceeded at `deadline`, a time of the clock."""
        seconds = max(0.0, deadline - self._clock())
        try:
            async with asyncio.timeout(seconds):
                return await self.run_in_thread(tokenize)
        except TimeoutError:
            raise DeadlineExceeded(
                f"the inputs were not tokenized within {seconds:.4g} s; send fewer or shorter ones"
            ) from None

    async def _submit(
        self, request: BatchRequest, characters: int, started: float, seconds: float | None
    ) -> _RunResult:
        """Run a batch request. started: when the request came. seconds: the client's timeout from there on."""
        tokenized = self._clock()
        done = await self.dispatcher.submit(request, self._compute_deadline(started, seconds))
        timings = Timings(
            total=self._clock() - started,
            tokenize=tokenized - started,
            queue=done.queue_seconds,
            engine=done.engine_seconds,
        )
        return _RunResult(done.results, RequestUsage(get_lengths(request.sequences), characters, timings))

    def _compute_deadline(self, started: float, seconds: float | None) -> float:
        return started + self.bound_seconds(seconds)

    def bound_seconds(self, seconds: float | None) -> float:
        """Return the seconds that a request may take: the client's timeout, if it has one, within the service's."""
        max_seconds = self.batching.request_timeout_seconds
        return max_seconds if seconds is None else min(max_seconds, seconds)

    async def run_in_thread(self, function: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
        return await self._threads.run(function, *arguments)
