"""The torch engine on one GPU: tokens/s, the share of the matrix-product peak, and how far 16 bit is from float32.

    python -m benchmarks.gpu [--seconds S] [--results FOLDER] [--only WORD] [--processes 8]

Random weights in the shapes of known models, bfloat16, from packed token ids on the host to pooled rows on the host.
And all-MiniLM-L6-v2 with its trained weights, whose parity in 8 bit is of texts, as the server takes it at start.
The peak is the best of three large products measured in the same run. Rates are with two batches in flight: medians of
short bursts, as the peak is one; under load for longer the card reaches its power limit and lowers its clock, which
"sustained" shows. Milliseconds are of one batch alone. Parity is the least cosine of pooled vectors to those of the
same engine in float32. Before anything is timed, processes beside each other write the models and compile the kernels.
Writes `<results>/<gpu>.json` after every line and, where matplotlib is installed, a picture of the roofline. Needs
torch with CUDA.
"""

from __future__ import annotations

import json
import multiprocessing
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import numpy as np
import torch
import transformers
import triton

from benchmarks.command_line import add_selection, parser_of
from benchmarks.gpu_shapes import BERT_BASE, BGE_M3, MINILM, MODERNBERT, QWEN3, Lengths, Shape, Trained, flops
from benchmarks.packing import log_uniform, random_batch
from benchmarks.roofline import draw
from embedserve_runtime.engines.torch.engine import DEFAULT_OPTIONS, ForwardOptions, TorchEngine
from embedserve_runtime.engines.torch.fused.support import EightBit
from embedserve_runtime.engines.torch.graphs import DeviceOutput, OutputLevel
from embedserve_runtime.engines.torch.heads import PooledHead
from embedserve_runtime.engines.torch.host_transfer import PendingArray
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.heads.dense import normalize
from embedserve_runtime.model import families
from embedserve_runtime.model.architecture import Encoder
from embedserve_runtime.model.checkpoint import Checkpoint, Weights
from embedserve_runtime.model.folder import read_folder

DEVICE = torch.device("cuda", 0)
IN_FLIGHT = 2
BURSTS, BURST_SECONDS, REST_SECONDS = 7, 0.1, 0.2


@dataclass(frozen=True, slots=True)
class Work:
    """lengths: of the texts of a batch. bar: tokens/s, or a share of the peak below 1, or milliseconds with `alone`."""

    name: str
    lengths: Lengths
    bar: float
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    shape: Shape | Trained
    works: tuple[Work, ...]
    eight_bit: EightBit | None = None

    @property
    def name(self) -> str:
        return f"{self.shape.name} {self.eight_bit}" if self.eight_bit else self.shape.name


# A model of a quarter of BERT-base's size, of which a batch is small work: no bars.
SMALL = (
    Work("32 x 512", np.full(32, 512), 0.0),
    Work("256 texts of 5 to 500", log_uniform(256, 5, 500), 0.0),
)
IN_EIGHT_BIT = (
    Work("32 x 512", np.full(32, 512), 3.8e6),
    Work("256 x 128", np.full(256, 128), 2.8e6),
    Work("512 x 50", np.full(512, 50), 2.6e6),
    Work("256 texts of 5 to 500", log_uniform(256, 5, 500), 2.6e6),
)
CASES = (
    Case(
        BERT_BASE,
        (
            Work("32 x 512", np.full(32, 512), 2.7e6),
            Work("256 x 128", np.full(256, 128), 2.8e6),
            Work("512 x 50", np.full(512, 50), 2.6e6),
            Work("256 texts of 5 to 500", log_uniform(256, 5, 500), 2.6e6),
            Work("1 x 16", np.full(1, 16), 0.4, alone=True),
            Work("1 x 512", np.full(1, 512), 0.65, alone=True),
        ),
    ),
    *(Case(BERT_BASE, IN_EIGHT_BIT, kind) for kind in EightBit),
    Case(BGE_M3, (Work("32 x 512", np.full(32, 512), 0.60),)),
    Case(QWEN3, (Work("32 x 512", np.full(32, 512), 0.50),)),
    Case(MODERNBERT, (Work("8 x 8192", np.full(8, 8192), 0.50), Work("32 x 512", np.full(32, 512), 0.50))),
    Case(MINILM, SMALL),
    *(Case(MINILM, SMALL, kind) for kind in EightBit),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. weights: the type in which the model's files have them."""

    model: str
    weights: str
    work: str
    tokens: int
    tokens_per_second: int
    tokens_per_second_sustained: int
    share_of_peak: float
    milliseconds_alone: float
    flops_a_token: float
    bar: float
    reached: bool
    least_cosine_to_float32: float


class Loaded:
    """A shape on the device, as the server runs it: pooled rows are all that comes back."""

    def __init__(
        self,
        encoder: Encoder,
        weights: Weights,
        shape: Shape | Trained,
        precision: torch.dtype | EightBit,
        options: ForwardOptions = DEFAULT_OPTIONS,
    ) -> None:
        self._engine = TorchEngine(encoder, weights, DEVICE, precision, options)
        self._engine.prepare(PooledHead([shape.pooling], [], DEVICE))
        self.description = self._engine.description

    def submit(self, batch: PackedBatch) -> list[PendingArray]:
        return self._engine.run(batch, _land, forward_output=OutputLevel.ROWS)

    def run(self, batch: PackedBatch) -> FloatArray:
        return np.concatenate([part.wait() for part in self.submit(batch)])


def _land(done: DeviceOutput, _: PackedBatch) -> PendingArray:
    return done.start_copy()


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def peak_flops() -> float:
    """Operations a second of the best large bfloat16 product."""
    best = 0.0
    for size in (4096, 8192, 16384):
        left = torch.randn(size, size, device=DEVICE, dtype=torch.bfloat16)
        right = torch.randn(size, size, device=DEVICE, dtype=torch.bfloat16)

        def product(a: torch.Tensor = left, b: torch.Tensor = right) -> None:
            _ = a @ b
            torch.cuda.synchronize()

        product()
        best = max(best, *(2 * size**3 / seconds(product) for _ in range(7)))
    return best


def burst_rate(loaded: Loaded, batch: PackedBatch) -> float:
    """The median of bursts of a tenth of a second, each after a rest."""
    rates = []
    for _ in range(BURSTS):
        time.sleep(REST_SECONDS)
        rates.append(rate(loaded, batch, BURST_SECONDS))
    return median(rates)


def rate(loaded: Loaded, batch: PackedBatch, for_seconds: float) -> float:
    """Tokens a second with `IN_FLIGHT` batches submitted at a time."""
    alone = seconds(lambda: loaded.run(batch))
    count = max(6, int(for_seconds / alone))
    start = time.perf_counter()
    done = sum(1 for _ in pending_results(loaded, batch, range(count)))
    return done * batch.tokens / (time.perf_counter() - start)


def pending_results(loaded: Loaded, batch: PackedBatch, wanted: Iterable[object]) -> Iterator[None]:
    """Runs the batch once for each of `wanted`, `IN_FLIGHT` submitted at a time: a step for each that is back."""
    under_way: deque[list[PendingArray]] = deque()
    for _ in wanted:
        under_way.append(loaded.submit(batch))
        if len(under_way) == IN_FLIGHT:
            _wait(under_way.popleft())
            yield
    for parts in under_way:
        _wait(parts)
        yield


def _wait(parts: Sequence[PendingArray]) -> None:
    for part in parts:
        part.wait()


def write(shape: Shape | Trained, folder: Path) -> None:
    """In a process of its own."""
    torch.set_num_threads(1)
    folder.mkdir()
    shape.save(folder)


def compile_kernels(case: Case, folder: Path) -> None:
    """All that `measure` runs in 16 or 8 bit, into the compiler's folder. In a process of its own."""
    encoder = families.describe(read_folder(folder))
    weights = Weights(encoder, Checkpoint.open(folder))
    options = ForwardOptions(calibration=case.shape.calibration_batch(folder))
    loaded = Loaded(encoder, weights, case.shape, case.eight_bit or torch.bfloat16, options)
    for work in case.works:
        loaded.run(random_batch(work.lengths))


def prepare(cases: Sequence[Case], parent: Path, processes: int) -> dict[str, Path]:
    """The folder of each model, without those that could not be written."""
    folders = {case.shape.name: parent / case.shape.name for case in cases}
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        started = time.perf_counter()
        written = [pool.submit(write, case.shape, folders[case.shape.name]) for case in unlike(cases)]
        for case, done in zip(unlike(cases), written, strict=True):
            if failure := done.exception():
                print(f"{case.shape.name} is not measured: {failure}", flush=True)
                del folders[case.shape.name]
        print(f"models written after {time.perf_counter() - started:.1f} s", flush=True)
        there = [case for case in cases if case.shape.name in folders]
        compiled = [pool.submit(compile_kernels, case, folders[case.shape.name]) for case in there]
        for case, ended in zip(there, compiled, strict=True):
            if failure := ended.exception():
                # What is wrong with it is seen again where it is measured.
                print(f"{case.name} is not compiled yet: {failure}", flush=True)
        print(f"kernels compiled after {time.perf_counter() - started:.1f} s", flush=True)
    return folders


def unlike(cases: Sequence[Case]) -> list[Case]:
    """One of each model."""
    return list({case.shape.name: case for case in cases}.values())


def measure(case: Case, folder: Path, peak: float, for_seconds: float) -> Iterator[Row]:
    shape, name, started = case.shape, case.name, time.perf_counter()
    encoder = families.describe(read_folder(folder))
    weights = Weights(encoder, Checkpoint.open(folder))
    stored = weights.read_tensor(weights.names[0]).dtype.name
    options = ForwardOptions(calibration=shape.calibration_batch(folder))
    loaded = Loaded(encoder, weights, shape, case.eight_bit or torch.bfloat16, options)
    ready = time.perf_counter()
    cosine = _parity(loaded, Loaded(encoder, weights, shape, torch.float32), shape.parity_batch(folder))
    print(
        f"{name}: {loaded.description.precision}, attention {loaded.description.attention}, "
        f"ready after {ready - started:.1f} s, "
        f"compared after {time.perf_counter() - started:.1f} s",
        flush=True,
    )
    for work in case.works:
        batch = random_batch(work.lengths)
        loaded.run(batch)
        alone = 1e3 * median(seconds(lambda b=batch: loaded.run(b)) for _ in range(20))  # type: ignore[misc]
        reached = burst_rate(loaded, batch)
        sustained = rate(loaded, batch, for_seconds)
        a_token = flops(encoder, work.lengths) / batch.tokens
        share = reached * a_token / peak
        value = alone if work.alone else share if work.bar < 1 else reached
        yield Row(
            model=name,
            weights=stored,
            work=work.name,
            tokens=batch.tokens,
            tokens_per_second=round(reached),
            tokens_per_second_sustained=round(sustained),
            share_of_peak=round(share, 3),
            milliseconds_alone=round(alone, 3),
            flops_a_token=round(a_token),
            bar=work.bar,
            reached=value <= work.bar if work.alone else value >= work.bar,
            least_cosine_to_float32=round(cosine, 6),
        )


def _parity(loaded: Loaded, exact: Loaded, batch: PackedBatch) -> float:
    vectors, want = (normalize(one.run(batch)) for one in (loaded, exact))
    return float((vectors * want).sum(axis=1).min())


def _line(row: Row) -> str:
    return (
        f"{row.model:16} {row.work:22} {row.tokens_per_second / 1e6:7.3f} M tok/s {row.share_of_peak:6.1%} of peak, "
        f"sustained {row.tokens_per_second_sustained / 1e6:7.3f}, "
        f"{row.milliseconds_alone:8.3f} ms alone  cosine {row.least_cosine_to_float32:.6f}  "
        f"bar {row.bar:g} {'reached' if row.reached else 'MISSED'}"
    )


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="of sustained load for each line")
    parser.add_argument("--processes", type=int, default=8, help="that compile beside each other")
    add_selection(parser, "models")
    arguments = parser.parse_args()
    peak = peak_flops()
    gpu = torch.cuda.get_device_name()
    print(f"{gpu}, torch {torch.__version__}, triton {triton.__version__}, peak {peak / 1e12:.0f} TFLOP/s")
    arguments.results.mkdir(parents=True, exist_ok=True)
    file = arguments.results / f"{gpu.replace(' ', '-')}.json"
    rows: list[Row] = []
    facts = {
        "gpu": gpu,
        "date": datetime.now(UTC).date().isoformat(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "transformers": transformers.__version__,
        "peak_tflops": round(peak / 1e12),
    }
    cases = [case for case in CASES if arguments.only in case.shape.name]
    with tempfile.TemporaryDirectory() as parent:
        folders = prepare(cases, Path(parent), arguments.processes)
        for case in cases:
            if case.shape.name not in folders:
                continue
            for row in measure(case, folders[case.shape.name], peak, arguments.seconds):
                print(_line(row), flush=True)
                rows.append(row)
                result = {**facts, "rows": [asdict(row) for row in rows]}
                file.write_text(json.dumps(result, indent=1) + "\n")
    draw(file)


if __name__ == "__main__":
    main()
