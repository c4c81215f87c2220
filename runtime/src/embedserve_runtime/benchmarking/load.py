"""Runs clients in a closed loop: each sends its next request when the last one is answered."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from embedserve_runtime.scheduling.dispatcher import Observer
from embedserve_runtime.service import EmbedQuery, InferenceService


@dataclass(slots=True)
class BatchCounter(Observer):
    """Adds up the batches that the engine has run."""

    count: int = 0
    tokens: int = 0
    padding: int = 0
    seconds: float = 0.0

    def batch_done(self, *, inputs: int, tokens: int, padding: int, seconds: float, failed: bool) -> None:
        del inputs, failed
        self.count += 1
        self.tokens += tokens
        self.padding += padding
        self.seconds += seconds

    def client_request(
        self, client: str, *, requests: int, inputs: int, tokens: int, refusal: str | None
    ) -> None:
        """Count nothing: a benchmark has no clients."""

    def clear(self) -> None:
        self.count = self.tokens = self.padding = 0
        self.seconds = 0.0


@dataclass(slots=True)
class LoadResult:
    """The requests that were answered. seconds: of each request. lengths: tokens of each text. duration: of the run."""

    seconds: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    duration: float = 0.0


async def run_load(
    service: InferenceService, texts: Sequence[str], *, clients: int, batch: int, seconds: float
) -> LoadResult:
    """Send the texts over and over, `batch` in a request, until the time is over; each client sends at least one
    request. Raises any RequestError."""
    load_result = LoadResult()
    source = itertools.cycle(texts)
    started = time.perf_counter()
    deadline = started + seconds

    async def client() -> None:
        while True:
            query = EmbedQuery(
                list(itertools.islice(source, batch)),
                truncate=True,
                outputs=service.card.main_output,
                reuse=False,
            )
            sent = time.perf_counter()
            result = await service.embed(query)
            load_result.seconds.append(time.perf_counter() - sent)
            load_result.lengths += result.usage.lengths
            if time.perf_counter() >= deadline:
                return

    await asyncio.gather(*(client() for _ in range(clients)))
    load_result.duration = time.perf_counter() - started
    return load_result
