"""Do sequences of a batch pay for each other's padding? Mixed lengths against equal ones, on the real MiniLM.

    python -m benchmarks.packing [--rounds N] [--threads N]

All cases run in turn in every round, so that a busy machine slows all of them alike; printed are medians over the
rounds. "of peak" is the share of the matrix-product rate that ONNX Runtime reaches on the model's own shapes, in the
same round: only the linear layers and attention count as work, so 100 % cannot be reached.
"padded" is the same engine with all sequences of the batch in one attention group and all rows padded, that is, what a
server does that pads in arrival order. The last lines tell what a long text costs the short ones of its batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median

import numpy as np
from numpy.typing import NDArray

from benchmarks.command_line import parser_of
from embedserve_runtime.benchmarking.matrix_products import build_products, count_flops
from embedserve_runtime.config import load_config
from embedserve_runtime.cpu.quota import count_usable_cpus
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.outputs import OutputKind
from embedserve_runtime.loading.runners import load_runner
from tests.support.models import minilm_folder

Lengths = NDArray[np.int64]


def log_uniform(count: int, low: int, high: int) -> Lengths:
    source = np.random.default_rng(1)
    return np.exp(source.uniform(np.log(low), np.log(high + 1), count)).astype(np.int64)


EQUAL = "64 x 64 tokens"
SHORT, LONG, TOGETHER = "31 x 12 tokens", "1 x 256 tokens", "31 x 12 tokens to one of 256"
CASES: dict[str, Lengths] = {
    EQUAL: np.full(64, 64),
    "32 x 128 tokens": np.full(32, 128),
    "16 x 256 tokens": np.full(16, 256),
    "256 x 16 tokens": np.full(256, 16),
    "64 texts of 5 to 250 tokens": log_uniform(64, 5, 250),
    "256 texts of 5 to 250 tokens": log_uniform(256, 5, 250),
    SHORT: np.full(31, 12),
    LONG: np.full(1, 256),
    TOGETHER: np.array([12] * 31 + [256]),
}
PADDED = {name: np.full(len(CASES[name]), CASES[name].max()) for name in CASES if "to" in name.split()}


def random_batch(lengths: Lengths) -> PackedBatch:
    source = np.random.default_rng(0)
    return PackedBatch.pack([source.integers(1000, 30_000, length).astype(np.int32) for length in lengths])


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=count_usable_cpus())
    arguments = parser.parse_args()
    runner = load_runner(
        load_config(
            flags={"model": {"source": str(minilm_folder())}, "engine": {"threads": arguments.threads}}
        )
    )
    encoder = runner.card.encoder
    work, product_flops = build_products(encoder, arguments.threads, rows=4096)
    batches = {name: random_batch(lengths) for name, lengths in CASES.items()}
    padded = {name: random_batch(lengths) for name, lengths in PADDED.items()}
    rates: dict[str, list[float]] = {name: [] for name in (*CASES, *(f"{name}, padded" for name in PADDED))}
    peaks: list[float] = []
    for _ in range(arguments.rounds):
        peaks.append(product_flops / seconds(work))
        for name, batch in batches.items():
            rates[name].append(batch.tokens / seconds(partial(runner.run, batch, OutputKind.DENSE)))
        for name, batch in padded.items():
            real = int(CASES[name].sum())
            rates[f"{name}, padded"].append(real / seconds(partial(runner.run, batch, OutputKind.DENSE)))

    print(
        f"threads {arguments.threads}, rounds {arguments.rounds}, matrix products {median(peaks) / 1e9:.0f} GFLOP/s"
    )
    print(f"{'batch':40} {'tokens':>7} {'tokens/s':>9} {'of equal':>9} {'of peak':>8}")
    for name, values in rates.items():
        lengths = CASES[name.removesuffix(", padded")]
        of_equal = median(value / equal for value, equal in zip(values, rates[EQUAL], strict=True))
        rate_of_work = count_flops(encoder, lengths) / lengths.sum()
        of_peak = median(value * rate_of_work / peak for value, peak in zip(values, peaks, strict=True))
        print(f"{name:40} {lengths.sum():7} {median(values):9.0f} {of_equal:9.2f} {of_peak:8.0%}")
    took = {
        name: [CASES[name.removesuffix(", padded")].sum() / rate for rate in rates[name]] for name in rates
    }
    apart = [short + long for short, long in zip(took[SHORT], took[LONG], strict=True)]
    for name in (TOGETHER, f"{TOGETHER}, padded"):
        times = median(one / other for one, other in zip(took[name], apart, strict=True))
        print(f"{name}: {times:.2f} x the time of both apart")


if __name__ == "__main__":
    main()
