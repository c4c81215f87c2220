"""Threads, sessions and batches at once: what is fastest for MiniLM? In one process, all ways in turn.

    python -m benchmarks.sessions [--rounds N] [--threads N] [--precision float32]

Work is some batches of one kind, which one session with all threads runs one after the other. Beside it: two at once on
the same session, and as many at once as there are threads on a session with one thread. Printed are medians over the
rounds, to one after the other: the wall time and CPU time of all batches, and the wall time of one that is alone. 8 bit
is taken from the benchmarks' own store (`python -m benchmarks.cpu` fills it).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import numpy as np

from benchmarks.command_line import parser_of
from benchmarks.cpu_peers import store
from benchmarks.packing import log_uniform, random_batch
from benchmarks.timing import Timing, measure_time
from embedserve_runtime.config import load_config
from embedserve_runtime.cpu.quota import count_usable_cpus
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.outputs import OutputKind
from embedserve_runtime.loading.runners import load_runner
from embedserve_runtime.runners.base import Runner
from tests.support.models import minilm_folder

WARM_UPS = 1
# How many batches of each kind, and the lengths of one.
WORK = {
    "1 x 12 tokens": (64, np.full(1, 12)),
    "2 x 12 tokens": (64, np.full(2, 12)),
    "16 x 12 tokens": (16, np.full(16, 12)),
    "1 x 256 tokens": (8, np.full(1, 256)),
    "8 texts of 5 to 250 tokens": (8, log_uniform(8, 5, 250)),
    "8 x 256 tokens": (4, np.full(8, 256)),
}


def loaded(precision: str, threads: int) -> Runner:
    engine = {"threads": threads, "precision": precision}
    return load_runner(
        load_config(
            flags={"model": {"source": str(minilm_folder()), "store": str(store())}, "engine": engine}
        )
    )


def run(runners: Sequence[Runner], batches: Sequence[PackedBatch]) -> Timing:
    """Each runner takes the next batch when it is free."""
    waiting = iter(batches)

    def work(runner: Runner) -> None:
        for batch in waiting:
            runner.run(batch, OutputKind.DENSE)

    def all_at_once() -> None:
        if len(runners) == 1:
            work(runners[0])
            return
        with ThreadPoolExecutor(len(runners)) as pool:
            list(pool.map(work, runners))

    return measure_time(all_at_once)


def compared(ways: Mapping[str, Sequence[Runner]], count: int, batch: PackedBatch, rounds: int) -> str:
    """ways: their runners, the first of which is what the others are compared with."""
    took: dict[str, list[tuple[Timing, Timing]]] = {name: [] for name in ways}
    for number in range(WARM_UPS + rounds):
        for name, runners in ways.items():
            both = run(runners, [batch] * count), run(runners[:1], [batch])
            if number >= WARM_UPS:
                took[name].append(both)
    first, *others = took.values()
    return "".join(_beside(other, first) for other in others)


def _beside(found: Sequence[tuple[Timing, Timing]], base: Sequence[tuple[Timing, Timing]]) -> str:
    pairs = [*zip(found, base, strict=True)]
    figures = (
        median(own.wall / other.wall for (own, _), (other, _) in pairs),
        median(own.cpu / other.cpu for (own, _), (other, _) in pairs),
        median(own.wall / other.wall for (_, own), (_, other) in pairs),
    )
    return "   " + "".join(f"{figure:7.2f}" for figure in figures)


def arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=count_usable_cpus())
    parser.add_argument("--precision", default="float32", choices=["float32", "int8"])
    return parser.parse_args()


def main() -> None:
    chosen = arguments()
    whole, single = (loaded(chosen.precision, threads) for threads in (chosen.threads, 1))
    ways = {
        "one after the other": [whole],
        "two at once": [whole] * 2,
        "a thread each": [single] * chosen.threads,
    }
    print(f"{whole.engine.precision}, {chosen.threads} threads, to one batch after the other")
    print(f"{'':30}" + "".join(f"{name:>24}" for name in [*ways][1:]))
    print(f"{'work':30}" + f"   {'wall':>7}{'CPU':>7}{'alone':>7}" * 2)
    for name, (count, lengths) in WORK.items():
        print(f"{name:30}{compared(ways, count, random_batch(lengths), chosen.rounds)}", flush=True)


if __name__ == "__main__":
    main()
