"""The whole server on a GPU under load, against its engine alone on the same card in the same run.

    python -m benchmarks.gpu_serving [--seconds 5] [--workers auto 1 6]

BERT-base shape with random weights, bfloat16, texts of words that are one token each, 32 texts a request, answers in
base64. The engine alone gets packed ids, two batches in flight, for as long. Prints tokens/s, requests/s, latencies and
the share of the engine's rate. The load generator is a process on the same machine. Needs torch with CUDA.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import torch
import uvloop
from transformers import PreTrainedTokenizerFast

from benchmarks.command_line import parser_of
from benchmarks.gpu import Loaded, rate
from benchmarks.gpu_peers import word_tokenizer
from benchmarks.gpu_shapes import BERT_BASE, VOCABULARY
from benchmarks.load import load
from benchmarks.packing import random_batch
from embedserve_runtime.model import families
from embedserve_runtime.model.checkpoint import Checkpoint, Weights
from embedserve_runtime.model.folder import read_folder

TEXTS = 32
BODIES = 64
# Enough requests in hand to fill the largest batch twice.
CASES = {"512 tokens": (512, 16, 0.90), "50 tokens": (50, 64, 0.75)}
SERVER = "import sys; from embedserve_runtime.commands.cli import main; sys.exit(main())"


def save(folder: Path) -> None:
    """A sentence-transformers folder: weights, tokenizer, mean pooling."""
    BERT_BASE.save(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=word_tokenizer(), pad_token="[PAD]", unk_token="[UNK]", model_max_length=512
    ).save_pretrained(folder)
    names = (
        ("", "1_Pooling"),
        ("sentence_transformers.models.Transformer", "sentence_transformers.models.Pooling"),
    )
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": kind}
        for number, (path, kind) in enumerate(zip(*names, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 768, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


def engine_rates(folder: Path, seconds: float) -> dict[str, float]:
    """Tokens/s of the engine alone, with a batch of the largest size that has a CUDA graph."""
    encoder = families.describe(read_folder(folder))
    loaded = Loaded(encoder, Weights(encoder, Checkpoint.open(folder)), BERT_BASE, torch.bfloat16)
    rates = {}
    for name, (length, _, _) in CASES.items():
        batch = random_batch(np.full(16_384 // length, length))
        loaded.run(batch)
        rates[name] = rate(loaded, batch, seconds)
    return rates


@dataclass(frozen=True, slots=True)
class Served:
    """A server that has answered. ready: seconds that took. log: its lines so far."""

    ready: float
    log: list[str]


@contextmanager
def served(
    folder: Path, port: int, workers: str, environment: Mapping[str, str] = os.environ
) -> Iterator[Served]:
    command = [sys.executable, "-c", SERVER, "serve", "--model", str(folder), "--port", str(port)]
    environment = {**environment, "EMBEDSERVE_ENGINE__KIND": "torch"}
    started = time.perf_counter()
    with tempfile.NamedTemporaryFile("w+") as file:
        log = Path(file.name)
        process = subprocess.Popen([*command, "--http-workers", workers], env=environment, stderr=file)
        try:
            while not _is_ready(port):
                if process.poll() is not None:
                    raise RuntimeError(
                        f"the server ended with {process.returncode}: {log.read_text()[-2000:]}"
                    )
                time.sleep(0.1)
            yield Served(time.perf_counter() - started, log.read_text().splitlines())
        finally:
            process.terminate()
            process.wait()


def _is_ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200
    except httpx.TransportError:
        return False


def bodies_of(length: int) -> list[bytes]:
    """Bodies without a text in common: the server runs equal texts that are in flight once."""
    return [_body_of(length, np.random.default_rng(seed)) for seed in range(BODIES)]


def _body_of(length: int, source: np.random.Generator) -> bytes:
    texts = [
        " ".join(f"w{number}" for number in source.integers(0, VOCABULARY - 4, length - 2))
        for _ in range(TEXTS)
    ]
    return json.dumps({"model": "m", "input": texts, "encoding_format": "base64"}).encode()


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of load for each line")
    parser.add_argument(
        "--workers",
        nargs="+",
        default=["auto", "1", "6"],
        help="numbers of HTTP workers, as --http-workers takes them",
    )
    arguments = parser.parse_args()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save(folder)
        alone = engine_rates(folder, arguments.seconds)
        print(
            torch.cuda.get_device_name(), {case: f"{rate / 1e6:.3f} M tok/s" for case, rate in alone.items()}
        )
        torch.cuda.empty_cache()
        for workers in arguments.workers:
            with served(folder, port, workers) as server:
                print(f"{workers} workers, ready after {server.ready:.1f} s; {info(port)}", flush=True)
                for case, (length, connections, bar) in CASES.items():
                    bodies = bodies_of(length)
                    uvloop.run(load(port, b"/v1/embeddings", bodies, connections, 1.0))
                    started = time.perf_counter()
                    latencies = uvloop.run(
                        load(port, b"/v1/embeddings", bodies, connections, arguments.seconds)
                    )
                    took = time.perf_counter() - started
                    tokens = len(latencies) * TEXTS * length / took
                    share = tokens / alone[case]
                    marks = statistics.quantiles([1e3 * latency for latency in latencies], n=100)
                    print(
                        f"{workers} workers, {case}: {tokens / 1e6:.3f} M tok/s, {len(latencies) / took:,.0f} "
                        f"requests/s, p50 {marks[49]:.1f} ms, p99 {marks[98]:.1f} ms, {share:.0%} of the engine, "
                        f"bar {bar:.0%} {'reached' if share >= bar else 'MISSED'}",
                        flush=True,
                    )


def info(port: int) -> object:
    told = httpx.get(f"http://127.0.0.1:{port}/info").json()
    shown = ("max_batch_tokens", "http_workers")
    return {**{name: told[name] for name in shown}, **told["engine"]}


if __name__ == "__main__":
    main()
