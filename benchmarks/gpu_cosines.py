"""How far 16 bit on a GPU is from float32, for every encoder of the table, for every kind of asymmetric model, and for
the heads that give more than one vector a text.

    python -m benchmarks.gpu_cosines [--results FOLDER] [--processes 8]

The tables are those of the tests: tiny random models of unusual shapes against transformers (encoders) and against
sentence-transformers (asymmetric models); a model of BGE-M3's form, and the real SPLADE, against the same heads in
float32 on the CPU. The least cosine of all rows in bfloat16 and in float16; the floor is 0.9995. Writes
`<results>/<gpu>-cosines.json`, and goes on where a run with this torch was cut; delete the file to begin anew. Needs
torch with CUDA; processes since most of the time goes to compiling.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from benchmarks.command_line import RESULTS, parser_of
from benchmarks.outputs import ALL, Hardware, Size, runner_of, save_like_bge_m3
from embedserve_runtime.engines.torch.engine import TorchEngine
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.cosines import compute_cosines
from embedserve_runtime.forward.outputs import ModelOutput, OutputKind
from embedserve_runtime.heads import dense
from embedserve_runtime.loading.assembly import build_runners
from embedserve_runtime.model import families
from embedserve_runtime.model.checkpoint import Checkpoint, Weights
from embedserve_runtime.model.folder import read_folder
from embedserve_runtime.model.pipeline import Pooling
from embedserve_runtime.model.tensors import ModelTensors
from embedserve_runtime.runners.base import Runner
from embedserve_runtime.tokenizing import TextTokenizer, TruncationRules
from tests.runtime.engines.cases import CASES
from tests.runtime.heads.head_runner import card_of
from tests.runtime.pipelines.folders import TEXTS, finished, tokens_of
from tests.runtime.pipelines.test_dense_routes import OWN, PROMPTS, SHARED, Bare
from tests.runtime.pipelines.test_dense_routes import saved as saved_pipeline
from tests.support.models import splade_folder
from tests.support.texts import parity_texts

FLOOR = 0.9995
DTYPES = (torch.bfloat16, torch.float16)
CHAINS = {**SHARED, **OWN}
Cosines = dict[str, float]


def of_encoder(number: int, dtype: torch.dtype) -> Cosines:
    """Mean-pooled vectors against transformers'."""
    case = CASES[number]
    with TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        reference = case.build(folder)
        encoder = families.describe(read_folder(folder))
        engine = TorchEngine(encoder, Weights(encoder, Checkpoint.open(folder)), _device(), dtype)
        batch = case.batch()
        got, want = (
            dense.pool(hidden, batch.cu_seqlens, Pooling.MEAN)
            for hidden in (engine.forward(batch), reference(batch))
        )
    return {case.name: float(compute_cosines(got, want).min())}


def of_routes(name: str, dtype: torch.dtype) -> Cosines:
    """Vectors of queries and of documents against sentence-transformers'."""
    with TemporaryDirectory() as folder_name:
        folder = Path(folder_name) / "model"
        torch.manual_seed(1)
        model = saved_pipeline(folder, *CHAINS[name](Bare(Path(folder_name))), **PROMPTS)
        (runner,) = build_runners(
            card_of(folder),
            ModelTensors(folder),
            lambda encoder, weights: [TorchEngine(encoder, weights, _device(), dtype)],
        )
        card = runner.card
        assert card.query is not None  # the table has nothing else
        found = []
        for way, query, want in (
            (card.query.card, True, model.encode_query(TEXTS)),
            (card, False, model.encode_document(TEXTS)),
        ):
            batch = PackedBatch.pack(tokens_of(card, TEXTS, "query" if query else "document", query=query))
            rows = runner.run(batch, OutputKind.DENSE).dense
            assert rows is not None  # they were asked for
            found.append(float(compute_cosines(finished(way, rows), want).min()))
    return {f"asymmetric, {name}": min(found)}


def of_heads(model: str, dtype: torch.dtype) -> Cosines:
    """Each output of the two models against the same on the CPU in float32."""
    with TemporaryDirectory() as folder_name:
        folder, outputs, settings = splade_folder(), OutputKind.SPARSE, {"task": "sparse"}
        if model != "SPLADE":
            folder, outputs, settings = Path(folder_name), ALL, {}
            save_like_bge_m3(folder, Size(layers=4, width=192, heads=3))
        exact = runner_of(folder, Hardware("cpu", 1), **settings)
        reduced = runner_of(folder, Hardware("cuda", 1), precision=_name(dtype), **settings)
        ids = TextTokenizer.from_card(exact.card).encode(parity_texts(24), "", TruncationRules(truncate=True))
        got, want = (_rows(runner, PackedBatch.pack(ids), outputs) for runner in (reduced, exact))
    return {f"{model}, {name}": float(compute_cosines(got[name], rows).min()) for name, rows in want.items()}


def _rows(runner: Runner, batch: PackedBatch, outputs: OutputKind) -> dict[str, FloatArray]:
    """Every output as rows, sparse vectors with all their zeros."""
    results: ModelOutput = runner.run(batch, outputs)
    rows: dict[str, FloatArray] = {}
    if results.dense is not None:
        rows["dense"] = results.dense
    if results.multi_vectors is not None:
        rows["multi-vector"] = np.concatenate(results.multi_vectors)
    if results.sparse is not None:
        rows["sparse"] = np.zeros(
            (len(results.sparse), runner.card.encoder.embeddings.vocabulary), np.float32
        )
        for row, vector in zip(rows["sparse"], results.sparse, strict=True):
            row[vector.indices] = vector.values
    return rows


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _device() -> torch.device:
    return torch.device("cuda", 0)


@dataclass(frozen=True)
class Job:
    """Rows of the table in one of the types: the one of that name, or all whose names begin with it and a comma."""

    name: str
    dtype: torch.dtype
    measure: Callable[[torch.dtype], Cosines]

    def run(self) -> Cosines:
        return self.measure(self.dtype)

    def is_in(self, found: Mapping[str, Cosines]) -> bool:
        return any(
            _name(self.dtype) in cosines and (name == self.name or name.startswith(f"{self.name},"))
            for name, cosines in found.items()
        )


def all_jobs() -> list[Job]:
    """Longest first."""
    measures: dict[str, Callable[[torch.dtype], Cosines]] = {
        model: partial(of_heads, model) for model in ("BGE-M3's form", "SPLADE")
    }
    measures |= {f"asymmetric, {name}": partial(of_routes, name) for name in CHAINS}
    measures |= {case.name: partial(of_encoder, number) for number, case in enumerate(CASES)}
    return [Job(name, dtype, measure) for name, measure in measures.items() for dtype in DTYPES]


def kept(file: Path, facts: Mapping[str, str]) -> dict[str, Cosines]:
    """The rows of a run that was cut, with the same device and torch."""
    if not file.exists():
        return {}
    content = json.loads(file.read_text())
    if any(content[name] != facts[name] for name in ("gpu", "torch")):
        return {}
    rows: dict[str, Cosines] = content["least_cosines"]
    return rows


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--processes", type=int, default=8)
    options = parser.parse_args()
    gpu = torch.cuda.get_device_name()
    facts = {"gpu": gpu, "date": datetime.now(UTC).date().isoformat(), "torch": torch.__version__}
    options.results.mkdir(parents=True, exist_ok=True)
    file = options.results / f"{gpu.replace(' ', '-')}-cosines.json"
    found = kept(file, facts)
    left = [job for job in all_jobs() if not job.is_in(found)]
    failed: list[Job] = []
    print(f"{len(found)} rows are there, {len(left)} jobs are left", flush=True)
    with ProcessPoolExecutor(options.processes, multiprocessing.get_context("spawn")) as pool:
        jobs = {pool.submit(job.run): job for job in left}
        for done in as_completed(jobs):
            job, failure = jobs[done], done.exception()
            if failure is not None:
                failed.append(job)
                print(f"{job.name:60} {_name(job.dtype)} FAILED: {failure}", flush=True)
                continue
            for name, cosine in done.result().items():
                found.setdefault(name, {})[_name(job.dtype)] = round(cosine, 6)
                below = "" if cosine >= FLOOR else " BELOW THE FLOOR"
                print(f"{name:60} {_name(job.dtype)} {cosine:.6f}{below}", flush=True)
            # At once: a run that is cut keeps what it has.
            rows = dict(sorted(found.items()))
            file.write_text(json.dumps({**facts, "floor": FLOOR, "least_cosines": rows}, indent=1) + "\n")
    too_far = sum(min(cosines.values()) < FLOOR for cosines in found.values())
    print(f"{gpu}: {len(found)} rows, {too_far} below {FLOOR}; {len(failed)} jobs failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
