"""Runs equal inputs once: those of one request, those that are running for another, and those that a cache still has.

An input is a text of a client with all options that decide its vector. It is looked for before it is tokenized.
Clients share nothing: an answer that comes too soon would tell one which texts another has sent, and one would wait in
the queue of another. A model's service has a cache of its own, so that vectors of two vector spaces never meet in one.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias, cast

import numpy as np
from cachetools import TTLCache
from msgspec.structs import replace

from embedserve_runtime.errors import DeadlineExceeded, EmptyInput, InputTooLong, InvalidInput
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.outputs import OutputKind
from embedserve_runtime.scheduling.clients import Client
from embedserve_runtime.service.current_client import begin_part, get_client_name
from embedserve_runtime.service.types import EmbedQuery, EmbedResult, RequestUsage, Timings

# A request of more inputs is a corpus, which seldom repeats itself, and looking for all of them would hold up the event
# loop: some 5 us each with a cache.
MAX_INPUTS = 256
# What an entry takes besides its text and its vector: key, array object, links of the cache.
_ENTRY_BYTES = 600

Key: TypeAlias = tuple[str, tuple[object, ...]]
RunQuery: TypeAlias = Callable[[EmbedQuery, float], Awaitable[EmbedResult]]
MeterReused: TypeAlias = Callable[[Client, int, int], Awaitable[None]]
"""Counts inputs of a client that did not run, and their tokens; raises RateLimited."""


class _Row(NamedTuple):
    """The finished vector of an input, the tokens that it took, and the bytes that it takes in the cache."""

    vector: FloatArray
    tokens: int
    nbytes: int = 0


class _Run:
    """A request's inputs that are running. size: how many."""

    __slots__ = ("_has_ended", "_result", "_waiter", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._has_ended = False
        self._result: EmbedResult | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def wait(self) -> EmbedResult | None:
        """Return what came of it, at once where it has ended; None where it failed or was cancelled."""
        if not self._has_ended:
            if self._waiter is None:
                self._waiter = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._waiter)
        return self._result

    def end(self, result: EmbedResult | None) -> None:
        self._has_ended, self._result = True, result
        if self._waiter is not None:
            self._waiter.set_result(None)


def can_coalesce(query: EmbedQuery) -> bool:
    """Return whether a query asks for no more than dense vectors of a few texts."""
    return (
        query.reuse
        and query.outputs is OutputKind.DENSE
        and query.spans is None
        and query.pool_factor is None
        and len(query.inputs) <= MAX_INPUTS
        and all(type(text) is str for text in query.inputs)
    )


class RequestCoalescer:
    """Embeds each distinct input once (request coalescing), out of a cache where there is one.

    It belongs to one event loop and one model.

    run: embeds a query that was checked, given when it came. cache_bytes: 0 keeps nothing.
    """

    def __init__(
        self,
        run: RunQuery,
        meter_reused: MeterReused,
        clock: Callable[[], float],
        cache_bytes: int,
        cache_seconds: float,
    ) -> None:
        self._run_query = run
        self._meter_reused = meter_reused
        self._clock = clock
        self._running: dict[Key, tuple[_Run, int]] = {}
        self._cache: TTLCache[Key, _Row] | None = (
            TTLCache(cache_bytes, cache_seconds, timer=clock, getsizeof=lambda row: row.nbytes)
            if cache_bytes
            else None
        )

    async def embed(self, query: EmbedQuery, started: float, deadline: float) -> EmbedResult:
        """Embed the texts of a query that `can_coalesce`. started, deadline: times of the clock.

        Raises any RequestError.
        """
        options = _get_options(query)
        keys = [(cast(str, text), options) for text in query.inputs]
        if len(keys) == 1 and self._cache is None and keys[0] not in self._running:
            return await self._run(keys, query, started)  # nearly all requests of a server without a cache
        cached: dict[Key, _Row] = {}
        joined: dict[Key, tuple[_Run, int]] = {}
        own: Counter[Key] = Counter()
        for key in keys:
            if (row := self._look_up(key)) is not None:
                cached[key] = row
            elif (shared := self._find_run(key, len(keys))) is not None:
                joined[key] = shared
            else:
                own[key] += 1
        if len(own) == len(keys):
            return await self._run(keys, query, started)
        rows, timings = dict(cached), Timings(0.0, 0.0, 0.0, 0.0)
        try:
            if own:
                timings = await self._run_into(rows, own, query, started)
            lost = await self._join(rows, joined, deadline)
            if lost:  # whoever ran them has failed or gone away, which need not happen to this request
                lost_counts = Counter(key for key in keys if key in lost)
                timings = await self._run_into(rows, lost_counts, query, started)
        except (EmptyInput, InvalidInput, InputTooLong):
            # The message names an input by its index among those that ran: what all of them give names the right one.
            return await self._run_query(query, started)
        await self._meter([rows[key].tokens for key in keys if key in joined and key not in lost])
        in_cache = sum(key in cached for key in keys)
        usage = RequestUsage(
            [rows[key].tokens for key in keys],
            sum(len(text) for text, _ in keys),
            replace(timings, total=self._clock() - started),
            cached=in_cache,
            joined=len(keys) - len(own) - in_cache,
        )
        return EmbedResult(np.stack([rows[key].vector for key in keys]), usage)

    async def _meter(self, lengths: Sequence[int]) -> None:
        """Count inputs that ran for other requests of the same client. lengths: in tokens. Raises RateLimited."""
        if lengths and (client := begin_part()) is not None:
            await self._meter_reused(client, len(lengths), sum(lengths))

    def _find_run(self, key: Key, size: int) -> tuple[_Run, int] | None:
        """Return the run that has an input, and the input's index in it.

        None for runs of more inputs than `size`: a request never waits for a larger one.
        """
        entry = self._running.get(key)
        return entry if entry is not None and entry[0].size <= size else None

    def _look_up(self, key: Key) -> _Row | None:
        return None if self._cache is None else self._cache.get(key)

    async def _run(self, keys: Sequence[Key], query: EmbedQuery, started: float) -> EmbedResult:
        run, result = _Run(len(keys)), None
        for index, key in enumerate(keys):
            self._running[key] = run, index
        try:
            result = await self._run_query(query, started)
        finally:
            for key in keys:
                if (entry := self._running.get(key)) is not None and entry[0] is run:
                    del self._running[key]
            run.end(result)
        if self._cache is not None:
            self._keep(self._cache, keys, result)
        return result

    async def _run_into(
        self, rows: dict[Key, _Row], counts: Mapping[Key, int], query: EmbedQuery, started: float
    ) -> Timings:
        """Run inputs into their rows. counts: how many times the request has each of them."""
        keys = [*counts]
        own = replace(query, inputs=[text for text, _ in keys], repeats=[*counts.values()])
        result = await self._run(keys, own, started)
        for index, key in enumerate(keys):
            rows[key] = _Row(result.dense[index], result.usage.lengths[index])
        return result.usage.timings

    async def _join(
        self, rows: dict[Key, _Row], joined: dict[Key, tuple[_Run, int]], deadline: float
    ) -> list[Key]:
        """Wait for inputs that run for other requests; return those that they did not finish."""
        lost: list[Key] = []
        try:
            async with asyncio.timeout(max(0.0, deadline - self._clock())):
                for key, (run, index) in joined.items():
                    result = await run.wait()
                    if result is None:
                        lost.append(key)
                    else:
                        rows[key] = _Row(result.dense[index], result.usage.lengths[index])
        except TimeoutError:
            raise DeadlineExceeded(
                "not answered in time; the server is busy with the same text for another request"
            ) from None
        return lost

    @staticmethod
    def _keep(cache: TTLCache[Key, _Row], keys: Sequence[Key], result: EmbedResult) -> None:
        for index, key in enumerate(keys):
            # A copy, since a row is a view that would keep its whole batch in memory.
            vector = result.dense[index].copy()
            row = _Row(vector, result.usage.lengths[index], _measure_entry(key, vector))
            if row.nbytes <= cache.maxsize:
                cache[key] = row


def _measure_entry(key: Key, vector: FloatArray) -> int:
    """Return about how many bytes an entry takes. Options are shared by the entries of a request."""
    return sys.getsizeof(key[0]) + vector.nbytes + _ENTRY_BYTES


def _get_options(query: EmbedQuery) -> tuple[object, ...]:
    """Return the client of the present request, where clients are told apart, and all that decides the vector of a text
    beside it."""
    return (
        get_client_name(),
        query.prompt,
        query.prompt_name,
        query.role,
        query.truncate,
        query.side,
        query.max_length,
        query.normalize,
        query.dimensions,
    )
