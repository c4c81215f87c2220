"""An engine with its threads: takes batches when the engine has room for one, and gives what came of them.

A serial engine has one thread, which runs a batch from beginning to end. One that overlaps has two: the first packs a
batch and submits it while an earlier one runs, the second waits for results in the order of submission.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from embedserve_runtime.engines.base import PackedBatch
from embedserve_runtime.results import Output, Results
from embedserve_runtime.running import Overlaps, Runs
from embedserve_runtime.scheduling.work import Cut, Outcome, finish, run_cut, submitted

Clock = Callable[[], float]
# The next batch, None when there will be no more; waits for one.
Take = Callable[[], Cut | None]
Give = Callable[[Cut, Outcome], None]


class Lane(Protocol):
    """Runs from its making until `take` gives None."""

    def join(self, seconds: float) -> None:
        """Wait for the end of its last batch, so long at most."""
        ...


def lane_of(runs: Runs, clock: Clock, take: Take, give: Give, name: str) -> Lane:
    """take, give: called on threads of the lane."""
    if isinstance(runs, Overlaps) and runs.most_under_way > 1:
        return OverlappingLane(runs, clock, take, give, name)
    return SerialLane(runs, clock, take, give, name)


class SerialLane:
    """One batch after the other."""

    def __init__(self, runs: Runs, clock: Clock, take: Take, give: Give, name: str) -> None:
        def work() -> None:
            while cut := take():
                give(cut, run_cut(cut, runs, clock))
                del cut  # lest a batch and its results stay in memory until the next one comes

        self._thread = threading.Thread(target=work, name=name, daemon=True)
        self._thread.start()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)


@dataclass(frozen=True, slots=True)
class _UnderWay:
    cut: Cut
    submitted: float
    results: Callable[[], Results]


class _OneAtATime:
    """What is left of a failed batch is run on the second thread, while the first may be submitting."""

    def __init__(self, runs: Runs, turn: threading.Lock) -> None:
        self._runs = runs
        self._turn = turn

    def run(self, batch: PackedBatch, wanted: Output) -> Results:
        with self._turn:
            return self._runs.run(batch, wanted)


class OverlappingLane:
    """The next batches are prepared and submitted while one runs, as many as the engine takes."""

    def __init__(self, runs: Overlaps, clock: Clock, take: Take, give: Give, name: str) -> None:
        self._runs = runs
        self._clock = clock
        self._take = take
        self._give = give
        self._turn = threading.Lock()
        self._again = _OneAtATime(runs, self._turn)
        self._room = threading.Semaphore(runs.most_under_way)
        # Bounded by the room: who puts has acquired it.
        self._under_way: queue.SimpleQueue[_UnderWay | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._submit, name=name, daemon=True),
            threading.Thread(target=self._collect, name=f"{name}-results", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def join(self, seconds: float) -> None:
        deadline = self._clock() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - self._clock()))

    def _submit(self) -> None:
        while True:
            self._room.acquire()
            cut = self._take()
            if cut is None:
                self._under_way.put(None)
                return
            started = self._clock()
            with self._turn:
                results = submitted(cut, self._runs)
            self._under_way.put(_UnderWay(cut, started, results))
            del cut, results  # as in `SerialLane`

    def _collect(self) -> None:
        free_since = self._clock()
        while one := self._under_way.get():
            # A batch behind another one starts when that one ends.
            started = max(one.submitted, free_since)
            outcome = finish(one.cut, one.results, self._again, started, self._clock)
            free_since = self._clock()
            self._room.release()
            self._give(one.cut, outcome)
            del one, outcome
