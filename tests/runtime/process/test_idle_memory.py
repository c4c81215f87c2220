"""Once requests have stopped coming, one small batch lets the engine give back memory, and no more than one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
import pytest

from embedserve_runtime.forward.outputs import OutputKind
from embedserve_runtime.process import idle_memory
from embedserve_runtime.process.idle_memory import release_memory_when_idle
from embedserve_runtime.scheduling.batches import BatchRequest
from embedserve_runtime.scheduling.dispatcher import Dispatcher
from embedserve_runtime.scheduling.policy import Limits
from tests.support.tiny_runners import TinyRunner, build_mean_run

LATER = 3_600.0


@dataclass
class Batches:
    """An observer that hands on the tokens of each batch."""

    tokens: asyncio.Queue[int] = field(default_factory=asyncio.Queue)

    def batch_done(self, *, inputs: int, tokens: int, padding: int, seconds: float, failed: bool) -> None:
        self.tokens.put_nowait(tokens)

    def client_request(
        self, client: str, *, requests: int, inputs: int, tokens: int, refusal: str | None
    ) -> None: ...


def build_request(tokens: int) -> BatchRequest:
    return BatchRequest([np.arange(tokens, dtype=np.int32)], OutputKind.DENSE)


async def test_a_small_batch_runs_once_after_each_time_that_requests_have_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(idle_memory, "IDLE_SECONDS", 0.0)
    batches = Batches()
    dispatcher = Dispatcher(
        [TinyRunner(build_mean_run())], Limits(64, 1_000, 100), clock=perf_counter, observer=batches
    )
    releasing = asyncio.create_task(release_memory_when_idle(dispatcher, build_request(1)))
    for tokens in (7, 9):
        for _ in range(
            20
        ):  # turns of the event loop, in each of which another batch could have been asked for
            await asyncio.sleep(0)
        assert batches.tokens.empty()
        await dispatcher.submit(build_request(tokens), perf_counter() + LATER)
        assert [await batches.tokens.get() for _ in range(2)] == [tokens, 1]
    dispatcher.close("the test is over")
    releasing.cancel()
