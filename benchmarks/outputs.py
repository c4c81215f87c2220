"""What several outputs of one forward cost, on a CPU or a GPU: dense, sparse and multi-vector of a model like BGE-M3
against dense alone and against three passes; the same of a model like gte-multilingual-base, which has dense and sparse
vectors; sparse vectors of the real SPLADE model against sentence-transformers.

    python -m benchmarks.outputs [--device cpu|cuda] [--size base|BGE-M3] [--rounds 5] [--threads 2] [--texts 32]
                                 [--tokens 128] [--only gte|bge|splade]

The first model has the shape of XLM-R base (12 layers of 768), or on a GPU of BGE-M3 (24 of 1024), the second that of
gte-multilingual-base (12 of 768); both a small vocabulary and random weights. All ways run in turn in every round, so
that a busy machine slows all of them alike; printed are medians of time and of CPU time, each with its ratio to the
first.
On a GPU both sides run in bfloat16, and a round is eight batches, of which two are under way at a time as in the
server; all results are on the host when it ends, and have been looked through for what is no number. Writing the
answers is not part of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from sentence_transformers import SparseEncoder
from transformers import GteConfig, GteForTokenClassification, XLMRobertaConfig, XLMRobertaModel

from benchmarks.command_line import parser_of
from benchmarks.timing import Timing, compute_median, measure_time
from embedserve_runtime.config import load_config
from embedserve_runtime.cpu.quota import count_usable_cpus
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.outputs import OutputKind
from embedserve_runtime.loading.runners import load_runner
from embedserve_runtime.runners.base import Runner
from embedserve_runtime.runners.protocol import AsyncBatchRunner, InFlightBatch
from embedserve_runtime.tokenizing import TextTokenizer, TruncationRules
from tests.support.models import splade_folder
from tests.support.texts import parity_texts
from tests.support.tiny_tokenizers import xlm_roberta_tokenizer

BOTH = OutputKind.DENSE | OutputKind.SPARSE
ALL = BOTH | OutputKind.MULTI_VECTOR
NAMES = {OutputKind.DENSE: "dense", BOTH: "dense, sparse", ALL: "dense, sparse, multi-vector"}
VOCABULARY = 2000
BATCHES = 8


@dataclass(frozen=True, slots=True)
class Size:
    """width: of the hidden states and of the token vectors."""

    layers: int
    width: int
    heads: int


SIZES = {"base": Size(12, 768, 12), "BGE-M3": Size(24, 1024, 16)}


@dataclass(frozen=True, slots=True)
class Hardware:
    """The device that runs the models, "cpu" or "cuda", and the threads that an engine on the CPU takes."""

    device: str
    threads: int


def save_like_bge_m3(folder: Path, size: Size) -> None:
    config = XLMRobertaConfig(
        vocab_size=VOCABULARY,
        hidden_size=size.width,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=4 * size.width,
        max_position_embeddings=514,
        type_vocab_size=1,
    )
    torch.manual_seed(0)
    XLMRobertaModel(config).save_pretrained(folder)
    xlm_roberta_tokenizer(folder)
    torch.save(torch.nn.Linear(size.width, 1).state_dict(), folder / "sparse_linear.pt")
    torch.save(torch.nn.Linear(size.width, size.width).state_dict(), folder / "colbert_linear.pt")


def save_like_gte_multilingual(folder: Path, size: Size) -> None:
    config = GteConfig(
        vocab_size=VOCABULARY,
        hidden_size=size.width,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=4 * size.width,
        max_position_embeddings=8192,
        num_labels=1,
    )
    torch.manual_seed(0)
    GteForTokenClassification(config).save_pretrained(folder)
    xlm_roberta_tokenizer(folder)


def runner_of(folder: Path, hardware: Hardware, *, precision: str = "auto", **model: str) -> Runner:
    kind = "torch" if hardware.device == "cuda" else "auto"
    engine = {"threads": hardware.threads, "kind": kind, "precision": precision}
    return load_runner(load_config(flags={"model": {"source": str(folder), **model}, "engine": engine}))


def of_outputs(runner: Runner, texts: int, tokens: int) -> Mapping[str, Callable[[], object]]:
    source = np.random.default_rng(0)
    batch = PackedBatch.pack([source.integers(5, VOCABULARY, tokens).astype(np.int32) for _ in range(texts)])
    several = [name for name in NAMES if name in runner.card.outputs]
    passes = [one for one in ALL if one in runner.card.outputs]

    def one_forward(outputs: OutputKind) -> Callable[[], None]:
        return lambda: through(runner, [(batch, outputs)])

    return {
        **{NAMES[outputs]: one_forward(outputs) for outputs in several},
        f"{len(passes)} passes": lambda: through(runner, [(batch, one) for one in passes]),
    }


def through(runner: Runner, work: Sequence[tuple[PackedBatch, OutputKind]]) -> None:
    """All of it, as the server does: on an engine that overlaps eight times, with as many under way as it takes."""
    if not isinstance(runner, AsyncBatchRunner):
        for batch, outputs in work:
            runner.run(batch, outputs)
        return
    under_way: deque[InFlightBatch] = deque()
    for batch, outputs in [*work] * BATCHES:
        if len(under_way) == runner.max_in_flight:
            under_way.popleft().results()
        under_way.append(runner.submit(batch, outputs))
    for one in under_way:
        one.results()


def of_splade(hardware: Hardware, texts: int) -> Mapping[str, Callable[[], object]]:
    """From text to vectors, in batches of 32; the longest first, as sentence-transformers sorts them."""
    runner = runner_of(splade_folder(), hardware, task="sparse")
    tokenizer = TextTokenizer.from_card(runner.card)
    given = parity_texts(2 * texts)
    oracle = SparseEncoder(str(splade_folder()), device=hardware.device)
    if hardware.device == "cuda":
        oracle = oracle.to(torch.bfloat16)
    oracle.max_seq_length = runner.card.max_length

    def ours() -> None:
        ids = sorted(tokenizer.encode(given, "", TruncationRules(truncate=True)), key=len, reverse=True)
        for start in range(0, len(ids), 32):
            runner.run(PackedBatch.pack(ids[start : start + 32]), OutputKind.SPARSE)

    def theirs() -> None:
        oracle.encode(given, batch_size=32)
        if hardware.device == "cuda":
            torch.cuda.synchronize()

    return {"SPLADE": ours, "SPLADE, sentence-transformers": theirs}


def report(ways: Mapping[str, Callable[[], object]], rounds: int) -> None:
    for work in ways.values():
        work()
    rows: dict[str, list[Timing]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, work in ways.items():
            rows[name].append(measure_time(work))
    medians = {name: compute_median(of) for name, of in rows.items()}
    first = next(iter(medians.values()))
    for name, (wall, cpu) in medians.items():
        times = f"{wall * 1000:8.0f} ms {wall / first.wall:6.2f} x"
        print(f"{name:32}{times}   CPU {cpu * 1000:8.0f} ms {cpu / first.cpu:6.2f} x")


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--size", choices=SIZES, help="base on a CPU, BGE-M3 on a GPU")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=count_usable_cpus())
    parser.add_argument("--texts", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--only", choices=("bge", "gte", "splade"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    hardware = Hardware(options.device, options.threads)
    size = options.size or ("base" if hardware.device == "cpu" else "BGE-M3")
    models = {"bge": (save_like_bge_m3, size), "gte": (save_like_gte_multilingual, "base")}
    for name, (save, of_size) in models.items():
        if options.only not in (None, name):
            continue
        with TemporaryDirectory() as folder:
            save(Path(folder), SIZES[of_size])
            runner = runner_of(Path(folder), hardware)
            shape = f"size of {of_size}, {options.texts} texts of {options.tokens} tokens"
            print(f"{name}: {shape}, {runner.engine.precision}")
            report(of_outputs(runner, options.texts, options.tokens), options.rounds)
    if options.only in (None, "splade"):
        report(of_splade(hardware, options.texts), options.rounds)


if __name__ == "__main__":
    main()
