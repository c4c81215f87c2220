"""Serving MiniLM on the CPU against sentence-transformers behind plain FastAPI, one after the other on one machine.

    python -m benchmarks.serving [--seconds 10]

Prints tokens/s and latencies of single short texts at 64 connections, and of batches of 32 texts of mixed length at
four, and the ratio to the peer. The load generator runs on the same cores, for both.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import uvloop
from tokenizers import Tokenizer

from benchmarks.http_layer import TEXT
from benchmarks.load import load
from tests.support.models import minilm_folder

WORDS = tuple(TEXT.split())
MOST_TOKENS = 256
CASES = {"single short texts, 64 connections": (64, 1), "batches of 32 mixed texts, 4 connections": (4, 32)}


def body_of(texts: int) -> bytes:
    """The same texts for every server: one of 12 words, or 32 of 4 to 200."""
    chance = random.Random(7)
    lengths = [12] if texts == 1 else [chance.choice((4, 8, 16, 32, 64, 128, 200)) for _ in range(texts)]
    inputs = [" ".join(chance.choice(WORDS) for _ in range(length)) for length in lengths]
    return json.dumps({"inputs": inputs}).encode()


def tokens_of(body: bytes, model: Path) -> int:
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    encodings = tokenizer.encode_batch(json.loads(body)["inputs"])
    return sum(min(len(encoding.ids), MOST_TOKENS) for encoding in encodings)


def commands(model: Path, port: int) -> Mapping[str, list[str]]:
    own = [
        sys.executable,
        "-c",
        "import sys; from embedserve_runtime.cli import main; sys.exit(main())",
        "serve",
    ]
    own += ["--model", str(model), "--port", str(port)]
    return {
        "sentence-transformers + FastAPI": [
            sys.executable,
            "-m",
            "benchmarks.fastapi_peer",
            str(model),
            str(port),
        ],
        "embedserve": own,
        "embedserve, 2 HTTP workers": [*own, "--http-workers", "2"],
    }


@contextmanager
def running(command: list[str], port: int) -> Iterator[None]:
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        while not answers(port):
            if process.poll() is not None:
                raise RuntimeError(f"{command[-3:]} ended with {process.returncode}")
            time.sleep(0.2)
        yield
    finally:
        process.terminate()
        process.wait()


def answers(port: int) -> bool:
    try:
        answer = httpx.post(f"http://127.0.0.1:{port}/embed", json={"inputs": "a"}, timeout=60)
    except httpx.TransportError:
        return False
    return answer.status_code == 200


def measure(port: int, body: bytes, connections: int, seconds: float) -> tuple[float, list[float]]:
    """Requests/s and latencies in ms. Raises RuntimeError when nothing was answered."""
    uvloop.run(load(port, b"/embed", body, connections, min(2.0, seconds)))
    answers(port)  # behind what the warm-up has left in the server
    started = time.perf_counter()
    latencies = uvloop.run(load(port, b"/embed", body, connections, seconds))
    if len(latencies) < 2:
        raise RuntimeError(f"{len(latencies)} answers in {seconds:.0f} s: give it more --seconds")
    return len(latencies) / (time.perf_counter() - started), [one * 1e3 for one in latencies]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds of load for each case")
    seconds = parser.parse_args().seconds
    model = minilm_folder()
    first: dict[str, float] = {}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for name, command in commands(model, port).items():
        with running(command, port):
            for case, (connections, texts) in CASES.items():
                body = body_of(texts)
                rate, latencies = measure(port, body, connections, seconds)
                tokens = rate * tokens_of(body, model)
                ratio = tokens / first.setdefault(case, tokens)
                marks = statistics.quantiles(latencies, n=100)
                print(
                    f"{name}, {case}: {tokens:,.0f} tokens/s, {rate:,.0f} requests/s, "
                    f"p50 {marks[49]:.1f} ms, p99 {marks[98]:.1f} ms, {ratio:.1f} times the peer",
                    flush=True,
                )


if __name__ == "__main__":
    main()
