"""Runs a failed batch again in halves, until the inputs that the engine cannot take are alone.

One bad input among n costs some 2 log2(n) runs; an engine that fails on everything costs `MAX_RUNS`, about four
times the batch's own work, and then all that is left fails.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from embedserve_runtime.errors import EngineFailure

T = TypeVar("T")

MAX_RUNS = 32


def isolate_failures(
    count: int, run: Callable[[Sequence[int]], T], failure: EngineFailure
) -> tuple[list[tuple[Sequence[int], T]], dict[int, EngineFailure]]:
    """Run a failed batch of `count` inputs in parts, and return the results of those that succeed and the failures by
    input.

    `run` takes indices of inputs and raises EngineFailure; `failure` is that of the whole batch.
    """
    done: list[tuple[Sequence[int], T]] = []
    failed: dict[int, EngineFailure] = {}
    waiting = deque(_split_in_halves(range(count))) if count > 1 else deque()
    if count == 1:
        failed[0] = failure
    runs = 0
    while waiting:
        group = waiting.popleft()
        if runs == MAX_RUNS:
            failed.update(dict.fromkeys(group, failure))
            continue
        runs += 1
        try:
            done.append((group, run(group)))
        except EngineFailure as error:
            if len(group) > 1:
                waiting.extend(_split_in_halves(group))
            else:
                failed[group[0]] = error
    return done, failed


def _split_in_halves(group: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    middle = (len(group) + 1) // 2
    return group[:middle], group[middle:]
