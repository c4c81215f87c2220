"""One session with all threads, or a session for each thread? MiniLM in one process, both in turn.

    python -m benchmarks.sessions [--rounds N] [--threads N] [--precision float32]

Work is some batches of one kind. One session runs them one after the other; several take them side by side, each with
one thread, and hold the weights as often. Printed are medians over the rounds: of all batches the wall time and CPU time
of several sessions to those of one, and the wall time of one batch alone. 8 bit is taken from the benchmarks' own store
(`python -m benchmarks.cpu` fills it).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import median

import numpy as np

from benchmarks.command_line import parser_of
from benchmarks.cpu_peers import store
from benchmarks.packing import log_uniform, random_batch
from embedserve_runtime.config import load_config
from embedserve_runtime.cpu_quota import usable_cpus
from embedserve_runtime.engines.base import PackedBatch
from embedserve_runtime.loading import load_runner
from embedserve_runtime.results import Output
from embedserve_runtime.runner import Runner
from tests.support.models import minilm_folder

WARM_UPS = 2
# How many batches of each kind, and the lengths of one.
WORK = {
    "1 x 12 tokens": (64, np.full(1, 12)),
    "2 x 12 tokens": (64, np.full(2, 12)),
    "16 x 12 tokens": (16, np.full(16, 12)),
    "1 x 256 tokens": (8, np.full(1, 256)),
    "8 texts of 5 to 250 tokens": (8, log_uniform(8, 5, 250)),
    "8 x 256 tokens": (4, np.full(8, 256)),
}


@dataclass(frozen=True, slots=True)
class Took:
    wall: float
    cpu: float


def loaded(precision: str, threads: int) -> Runner:
    engine = {"threads": threads, "precision": precision}
    return load_runner(
        load_config(flags={"model": {"source": str(minilm_folder()), "store": str(store())}, "engine": engine})
    )


def run(runners: Sequence[Runner], batches: Sequence[PackedBatch]) -> Took:
    """Each runner takes the next batch when it is free."""
    waiting = iter(batches)

    def work(runner: Runner) -> None:
        for batch in waiting:
            runner.run(batch, Output.DENSE)

    wall, cpu = time.perf_counter(), time.process_time()
    if len(runners) == 1:
        work(runners[0])
    else:
        with ThreadPoolExecutor(len(runners)) as pool:
            list(pool.map(work, runners))
    return Took(time.perf_counter() - wall, time.process_time() - cpu)


def compared(one: Runner, several: Sequence[Runner], count: int, batch: PackedBatch, rounds: int) -> str:
    ways = {
        "one": partial(run, [one], [batch] * count),
        "several": partial(run, several, [batch] * count),
        "one, alone": partial(run, [one], [batch]),
        "several, alone": partial(run, several[:1], [batch]),
    }
    for _ in range(WARM_UPS):
        for way in ways.values():
            way()
    took: dict[str, list[Took]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            took[name].append(way())

    def ratio(name: str, other: str, part: str) -> float:
        pairs = zip(took[name], took[other], strict=True)
        return median(getattr(first, part) / getattr(second, part) for first, second in pairs)

    return (
        f"{ratio('several', 'one', 'wall'):10.2f}{ratio('several', 'one', 'cpu'):10.2f}"
        f"{ratio('several, alone', 'one, alone', 'wall'):10.2f}"
    )


def arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=usable_cpus())
    parser.add_argument("--precision", default="float32", choices=["float32", "int8"])
    return parser.parse_args()


def main() -> None:
    chosen = arguments()
    one = loaded(chosen.precision, chosen.threads)
    several = [loaded(chosen.precision, 1) for _ in range(chosen.threads)]
    print(f"{chosen.threads} sessions of one thread to one session, {one.engine.precision}")
    print(f"{'work':30}{'wall':>10}{'CPU':>10}{'alone':>10}")
    for name, (count, lengths) in WORK.items():
        print(f"{name:30}{compared(one, several, count, random_batch(lengths), chosen.rounds)}", flush=True)


if __name__ == "__main__":
    main()
