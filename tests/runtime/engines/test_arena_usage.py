"""Memory that a large batch took goes back once batches are small again, and stays while large ones come."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from embedserve_runtime.engines.onnx.arena_usage import MAX_LENGTH, MIN_TOKENS, SECONDS, ArenaUsage


@dataclass(frozen=True)
class Batch:
    """A batch that comes `after` seconds after the one before."""

    tokens: int
    longest: int = 100
    after: float = 1.0


LARGE, SMALL = Batch(2_048), Batch(8)
LATER, SOON = Batch(8, after=SECONDS), Batch(8, after=SECONDS / 2)


@pytest.mark.parametrize(
    ("batches", "want"),
    [
        pytest.param([LARGE, LARGE], [False, False], id="large ones"),
        pytest.param([LARGE, SMALL, SMALL], [False, False, False], id="small ones soon after a large one"),
        pytest.param([LARGE, LATER, LATER], [False, True, False], id="once, when it was long ago"),
        pytest.param([LARGE, SOON, LARGE, SOON, SOON], [False] * 4 + [True], id="each large one counts"),
        pytest.param(
            [LARGE, Batch(1_100, after=SECONDS), SOON], [False] * 3, id="half as large as what is kept"
        ),
        pytest.param([Batch(MIN_TOKENS), LATER], [False, False], id="little is always kept"),
        pytest.param(
            [Batch(MAX_LENGTH + 1, MAX_LENGTH + 1), Batch(MAX_LENGTH, MAX_LENGTH)],
            [True, False],
            id="a long text",
        ),
        pytest.param(
            [LARGE, Batch(2_000, MAX_LENGTH + 1), LATER],
            [False, True, False],
            id="a long text takes all with it",
        ),
    ],
)
def test_memory_is_released_after_the_first_small_batch_a_while_after_the_last_large_one(
    batches: Sequence[Batch], want: Sequence[bool]
) -> None:
    now = 1_000.0
    memory, released = ArenaUsage(lambda: now), []
    for batch in batches:
        now += batch.after
        released.append(memory.is_to_be_released(batch.tokens, batch.longest))
    assert released == want


# In a process of its own, since what other tests have allocated would count.
RUNS_A_LARGE_BATCH_AND_SMALL_ONES = """
import os
import numpy as np
from embedserve_runtime.engines.onnx import arena_usage
from embedserve_runtime.forward.batch import PackedBatch
from tests.runtime.engines.long_text import FORMS, build_engine, describe_encoder, draw_sequence

def read_resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

engine = build_engine(describe_encoder(FORMS["plain"], 64))
small = PackedBatch.pack([draw_sequence(8)])
engine.forward(small)
before = read_resident()
engine.forward(PackedBatch.pack([draw_sequence(32)] * 3_000))
engine.forward(small)
kept = read_resident() - before
arena_usage.SECONDS = 0.0
engine.forward(small)
print(kept, read_resident() - before)
"""


def test_what_a_large_batch_of_short_texts_took_is_given_back_a_while_later() -> None:
    program = [sys.executable, "-c", RUNS_A_LARGE_BATCH_AND_SMALL_ONES]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    output = subprocess.run(program, env=environment, check=True, capture_output=True, text=True).stdout
    kept, held = map(float, output.split())
    assert kept > 50, "otherwise the test shows nothing"
    assert held < kept / 5
