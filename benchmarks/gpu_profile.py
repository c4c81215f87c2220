"""Where the time of a batch on a GPU goes: kernels by name, the gaps between them, and the host's steps.

    python -m benchmarks.gpu_profile [--model BERT-base] [--precision bfloat16|fp8|int8] [--work 32x512 1x16]

The shapes, the weights and the path are those of `benchmarks.gpu`. "kernels" is what they take by torch's profiler, a
line each in the order of their share; "gaps" is what is left between the first and the last of a batch. "host" are
medians of the steps of one batch alone, in microseconds: `submit` packs and queues, `wait` is what is left until the
rows are on the host. Needs torch with CUDA.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.command_line import parser_of
from benchmarks.gpu import Loaded
from benchmarks.gpu_shapes import BERT_BASE, BGE_M3, MODERNBERT, QWEN3
from benchmarks.packing import random_batch
from embedserve_runtime.engines.torch.fused.support import EightBit
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.model import families
from embedserve_runtime.model.checkpoint import Checkpoint, Weights
from embedserve_runtime.model.folder import read_folder

SHAPES = {shape.name: shape for shape in (BERT_BASE, BGE_M3, QWEN3, MODERNBERT)}
BATCHES = 10
ALONE = 300
LINES = 14


@dataclass(frozen=True, slots=True)
class Ran:
    """A kernel or a copy; microseconds."""

    name: str
    start: float
    took: float


def ran_in(loaded: Loaded, batch: PackedBatch) -> list[list[Ran]]:
    """What ran on the device, of each of some batches that ran one at a time."""
    batches = []
    for _ in range(BATCHES):
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            loaded.run(batch)
            torch.cuda.synchronize()
        on_device = [
            Ran(event.name, event.time_range.start, event.time_range.elapsed_us())
            for event in seen.events() or ()
            if event.device_type.name == "CUDA"
        ]
        batches.append(sorted(on_device, key=lambda one: one.start))
    return batches


def report(batches: Sequence[Sequence[Ran]]) -> None:
    spans = [batch[-1].start + batch[-1].took - batch[0].start for batch in batches]
    middle = batches[int(np.argsort(spans)[len(spans) // 2])]
    span = middle[-1].start + middle[-1].took - middle[0].start
    total = sum(one.took for one in middle)
    print(f"  device {span:.0f} us: {len(middle)} kernels {total:.0f}, gaps {span - total:.0f}")
    by_name: defaultdict[str, list[float]] = defaultdict(list)
    for one in middle:
        by_name[short(one.name)].append(one.took)
    for name, took in sorted(by_name.items(), key=lambda pair: -sum(pair[1]))[:LINES]:
        print(f"    {sum(took):8.1f} us  {len(took):4d} x {median(took):7.2f}  {name}")


def short(name: str) -> str:
    """Without the arguments of templates."""
    return re.sub(r"\(.*|<.*", "", name).removeprefix("void ")[:90]


def host(loaded: Loaded, batch: PackedBatch) -> None:
    submits, waits = [], []
    for _ in range(ALONE):
        start = time.perf_counter()
        parts = loaded.submit(batch)
        submitted = time.perf_counter()
        for part in parts:
            part.wait()
        submits.append(submitted - start)
        waits.append(time.perf_counter() - submitted)
    print(f"  host submit {1e6 * median(submits):.0f} us, wait {1e6 * median(waits):.0f} us")


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--model", default="BERT-base", choices=sorted(SHAPES))
    parser.add_argument("--precision", default="bfloat16", choices=("bfloat16", *EightBit))
    parser.add_argument("--work", nargs="+", default=["32x512", "1x512", "1x16"], help="texts x tokens")
    arguments = parser.parse_args()
    eight_bit = None if arguments.precision == "bfloat16" else EightBit(arguments.precision)
    shape = SHAPES[arguments.model]
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent)
        shape.save(folder)
        encoder = families.describe(read_folder(folder))
        weights = Weights(encoder, Checkpoint.open(folder))
        loaded = Loaded(encoder, weights, shape, eight_bit or torch.bfloat16)
    for work in arguments.work:
        count, length = map(int, work.split("x"))
        batch = random_batch(np.full(count, length))
        for _ in range(5):
            loaded.run(batch)
        print(f"{shape.name} {arguments.precision}, {work}", flush=True)
        host(loaded, batch)
        report(ran_in(loaded, batch))


if __name__ == "__main__":
    main()
