"""Several processes on one GPU, each with an engine of its own, against one alone: whether the host is in the way.

    python -m benchmarks.gpu_replicas [--seconds 2] [--max-processes 3]

BERT-base shape with random weights, bfloat16. Prints what one process, then two of them and so on reach together while
the others rest: tokens a second, batches in flight in each as in `benchmarks.gpu`, under load for so long. That several
reach no more than one is what a server of one process a GPU counts on. Needs torch with CUDA.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import torch

from benchmarks.command_line import parser_of
from benchmarks.gpu import Loaded, pending_results
from benchmarks.gpu_shapes import BERT_BASE, Lengths
from benchmarks.packing import log_uniform, random_batch
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.model import families
from embedserve_runtime.model.checkpoint import Checkpoint, Weights
from embedserve_runtime.model.folder import read_folder

WORK: dict[str, Lengths] = {
    "32 x 512": np.full(32, 512),
    "512 x 50": np.full(512, 50),
    "256 texts of 5 to 500": log_uniform(256, 5, 500),
}
# A process that could not start would have the others wait for it without end.
MAX_SECONDS = 120
# Name of the work, processes at work, tokens/s of one of them.
Found = tuple[str, int, float]


@dataclass(frozen=True, slots=True)
class Shared:
    """What the processes have in common: how many there are, seconds of each round, where their rates go."""

    max_processes: int
    seconds: float
    together: Barrier
    found: Queue[Found]


def replica(number: int, folder: Path, shared: Shared) -> None:
    """A process: takes part in all rounds of more than `number`."""
    encoder = families.describe(read_folder(folder))
    loaded = Loaded(encoder, Weights(encoder, Checkpoint.open(folder)), BERT_BASE, torch.bfloat16)
    for name, lengths in WORK.items():
        batch = random_batch(lengths)
        loaded.run(batch)
        for count in range(1, shared.max_processes + 1):
            shared.together.wait(MAX_SECONDS)
            if number < count:
                rate = tokens_within(loaded, batch, shared.seconds) / shared.seconds
                shared.found.put((name, count, rate))
            shared.together.wait(MAX_SECONDS)


def tokens_within(loaded: Loaded, batch: PackedBatch, seconds: float) -> int:
    """Of batches whose rows arrived in that time."""
    end = time.perf_counter() + seconds
    until_then = iter(lambda: time.perf_counter() < end, False)
    return sum(batch.tokens for _ in pending_results(loaded, batch, until_then) if time.perf_counter() < end)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="of load for each line")
    parser.add_argument("--max-processes", type=int, default=3)
    options = parser.parse_args()
    spawned = multiprocessing.get_context("spawn")
    shared = Shared(
        options.max_processes, options.seconds, spawned.Barrier(options.max_processes), spawned.Queue()
    )
    print(torch.cuda.get_device_name(), flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        BERT_BASE.save(folder)
        processes = [
            spawned.Process(target=replica, args=(number, folder, shared))
            for number in range(options.max_processes)
        ]
        for process in processes:
            process.start()
        rates: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
        for _ in range(len(WORK) * options.max_processes * (options.max_processes + 1) // 2):
            work, count, rate = shared.found.get(timeout=MAX_SECONDS)
            rates[work, count].append(rate)
            if len(rates[work, count]) == count:
                total, alone = sum(rates[work, count]), sum(rates[work, 1])
                print(
                    f"{work}, processes: {count}, {total / 1e6:.3f} M tok/s, {total / alone:.0%} of one",
                    flush=True,
                )
        for process in processes:
            process.join()


if __name__ == "__main__":
    main()
