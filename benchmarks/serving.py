"""Serving MiniLM on the CPU against sentence-transformers behind plain FastAPI and against infinity-emb, one after the
other on one machine.

    python -m benchmarks.serving [--seconds 10] [--output benchmarks/results/serving.json]

Prints tokens/s and latencies of single short texts at 64 connections, and of batches of 32 texts of mixed length at
four, and the ratio to the first peer. The load generator runs on the same cores, for all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import httpx
import uvloop
from tokenizers import Tokenizer

from benchmarks.cpu_peers import OURS, Peer, infinity, ours, sentence_transformers
from benchmarks.http_layer import TEXT
from benchmarks.load import load
from embedserve_runtime.cpu_quota import usable_cpus
from tests.support.models import minilm_folder

WORDS = tuple(TEXT.split())
MOST_TOKENS = 256
CASES = {"single short texts, 64 connections": (64, 1), "batches of 32 mixed texts, 4 connections": (4, 32)}


@dataclass(frozen=True, slots=True)
class Measured:
    """Rates are per second, latencies in ms."""

    server: str
    case: str
    tokens_rate: float
    requests_rate: float
    p50: float
    p99: float


def texts_of(count: int) -> list[str]:
    """The same texts for every server: one of 12 words, or 32 of 4 to 200."""
    chance = random.Random(7)
    lengths = [12] if count == 1 else [chance.choice((4, 8, 16, 32, 64, 128, 200)) for _ in range(count)]
    return [" ".join(chance.choice(WORDS) for _ in range(length)) for length in lengths]


def tokens_of(texts: Sequence[str], model: Path) -> int:
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return sum(min(len(encoding.ids), MOST_TOKENS) for encoding in tokenizer.encode_batch(list(texts)))


def servers(model: Path, port: int) -> list[Peer]:
    own = ours(model, port)
    workers = replace(own, name=f"{OURS}, 2 HTTP workers", command=[*own.command, "--http-workers", "2"])
    return [sentence_transformers(model, port), infinity(model, port), own, workers]


@contextmanager
def running(peer: Peer) -> Iterator[None]:
    environment = os.environ | peer.environment
    process = subprocess.Popen(
        peer.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )
    try:
        while not answers(peer):
            if process.poll() is not None:
                raise RuntimeError(f"{peer.name} ended with {process.returncode}")
            time.sleep(0.2)
        yield
    finally:
        process.terminate()
        process.wait()


def answers(peer: Peer) -> bool:
    url = f"http://127.0.0.1:{peer.port}{peer.path.decode()}"
    headers = {"content-type": "application/json"}
    try:
        return httpx.post(url, content=peer.body(["a"]), headers=headers, timeout=60).status_code == 200
    except httpx.TransportError:
        return False


def measure(peer: Peer, texts: Sequence[str], connections: int, seconds: float) -> tuple[float, list[float]]:
    """Requests/s and latencies in ms. Raises RuntimeError when nothing was answered."""
    body = peer.body(texts)
    uvloop.run(load(peer.port, peer.path, body, connections, min(2.0, seconds)))
    answers(peer)  # behind what the warm-up has left in the server
    started = time.perf_counter()
    latencies = uvloop.run(load(peer.port, peer.path, body, connections, seconds))
    if len(latencies) < 2:
        raise RuntimeError(f"{len(latencies)} answers in {seconds:.0f} s: give it more --seconds")
    return len(latencies) / (time.perf_counter() - started), [one * 1e3 for one in latencies]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds of load for each case")
    parser.add_argument("--output", type=Path, help="JSON file for the figures")
    options = parser.parse_args()
    model = minilm_folder()
    first: dict[str, float] = {}
    measured = []
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for peer in servers(model, port):
        with running(peer):
            for case, (connections, count) in CASES.items():
                texts = texts_of(count)
                rate, latencies = measure(peer, texts, connections, options.seconds)
                tokens = rate * tokens_of(texts, model)
                ratio = tokens / first.setdefault(case, tokens)
                marks = statistics.quantiles(latencies, n=100)
                one = Measured(peer.name, case, tokens, rate, marks[49], marks[98])
                measured.append(asdict(one))
                print(
                    f"{one.server}, {case}: {tokens:,.0f} tokens/s, {rate:,.0f} requests/s, "
                    f"p50 {one.p50:.1f} ms, p99 {one.p99:.1f} ms, {ratio:.2f} times the first peer",
                    flush=True,
                )
    if options.output:
        options.output.write_text(json.dumps({"cpus": usable_cpus(), "measured": measured}, indent=2) + "\n")


if __name__ == "__main__":
    main()
