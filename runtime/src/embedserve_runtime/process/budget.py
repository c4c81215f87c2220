"""Measures the token budget of a server that answers already, while no request is there."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.scheduling.calibration import Calibration, SampleTexts, calibrate

log = logging.getLogger(__name__)

# Enough for three budgets of a small model on two cores, and for all of them on a GPU.
CALIBRATION_SECONDS = 0.5
# A server that is never idle in this many seconds keeps the budget that it started with.
PAUSE_SECONDS = 1.0
MAX_TRIES = 60


class RequestSource(Protocol):
    """A source of requests, which says whether they come in; read on the thread that measures."""

    @property
    def is_idle(self) -> bool: ...

    @property
    def num_admitted(self) -> int: ...


class Interrupted(Exception):
    """A request came in, or the server stops, while the budget was measured."""


@dataclass(frozen=True, slots=True)
class BudgetMeasurement:
    """Measures which token budget suits an engine.

    run: runs a batch. concurrency: batches at once, as in the server.
    """

    run: Callable[[PackedBatch], object]
    texts: SampleTexts
    concurrency: int

    def measure(
        self, seconds: float = CALIBRATION_SECONDS, check: Callable[[], None] = lambda: None
    ) -> Calibration:
        """Run batches for so many seconds. check: called before each batch and after the last; may raise."""

        def run(batch: PackedBatch) -> object:
            check()
            return self.run(batch)

        calibration = calibrate(
            run,
            self.texts,
            concurrency=self.concurrency,
            seconds=seconds,
            clock=time.perf_counter,
        )
        check()
        return calibration


async def measure_when_idle(
    measurement: BudgetMeasurement, requests: RequestSource, is_stopping: Callable[[], bool]
) -> Calibration | None:
    """Measure while no request is there, from the beginning again where one comes in: it waits for the batch that is
    being measured at most. None where the server was not idle for long enough, or stops."""
    for _ in range(MAX_TRIES):
        if is_stopping():
            return None
        if requests.is_idle:
            try:
                check = _build_check(requests, is_stopping)
                return await asyncio.to_thread(measurement.measure, check=check)
            except Interrupted:
                pass
        await asyncio.sleep(PAUSE_SECONDS)
    return None


def _build_check(requests: RequestSource, is_stopping: Callable[[], bool]) -> Callable[[], None]:
    """Return a function that raises Interrupted once a request has come in, or the server stops."""
    before = requests.num_admitted

    def check() -> None:
        if is_stopping() or requests.num_admitted != before:
            raise Interrupted

    return check


def log_budget(calibration: Calibration) -> None:
    """Log the budget and the rates that it was chosen by."""
    rates = {str(m.budget): round(m.tokens_per_second) for m in calibration.measurements}
    log.info(
        "token budget chosen", extra={"max_batch_tokens": calibration.budget, "tokens_per_second": rates}
    )
