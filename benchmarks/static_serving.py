"""A static model over HTTP, this tree against another checkout of the repository, in CPU time of the servers.

    python -m benchmarks.static_serving --against FOLDER [--rounds 5] [--requests 20]

Two models, those of `benchmarks.static`; batches of 32 and of 256 paragraphs of the standard library's docstrings,
which the servers have met; vectors as numbers (`/embed`) and in base64 (`/v1/embeddings`). Both servers run and are
asked in turn, round by round. Prints the median of CPU milliseconds a request of each, and their ratio. CPU time, since
wall time counts what others do on the machine.
"""

from __future__ import annotations

import http.client
import json
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.command_line import parser_of
from benchmarks.cpu import free_port, running
from benchmarks.cpu_peers import JSON, REPOSITORY, START_SECONDS, Peer, Running, ours
from benchmarks.docstrings import paragraphs
from benchmarks.static import wordpiece_model
from tests.support.models import model2vec_folder

SIZES = (32, 256)
BATCHES = 4


def server_of(tree: Path, model: Path) -> Peer:
    """A server of a checkout, with the packages of this environment."""
    return replace(
        ours(model, free_port()),
        name=str(tree),
        environment={"PYTHONPATH": str(tree / "runtime" / "src"), "EMBEDSERVE_SERVER__HTTP_WORKERS": "1"},
    )


def bodies_of(size: int, texts: Sequence[str]) -> Mapping[str, tuple[str, list[bytes]]]:
    """The path and the bodies of requests, by how vectors are answered."""
    batches = [texts[start : start + size] for start in range(0, size * BATCHES, size)]
    numbers = [json.dumps({"inputs": batch}).encode() for batch in batches]
    base64 = [
        json.dumps({"input": batch, "encoding_format": "base64", "model": "static"}).encode()
        for batch in batches
    ]
    return {"numbers": ("/embed", numbers), "base64": ("/v1/embeddings", base64)}


def milliseconds(server: Running, path: str, bodies: Sequence[bytes], requests: int) -> float:
    """CPU milliseconds of the server for each of so many requests, over one connection."""
    connection = http.client.HTTPConnection("127.0.0.1", server.peer.port, timeout=START_SECONDS)
    before = server.running_seconds()
    for number in range(requests):
        connection.request("POST", path, bodies[number % len(bodies)], JSON)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        answer.read()
    cpu_seconds = server.running_seconds() - before
    connection.close()
    return cpu_seconds * 1e3 / requests


def compare(name: str, model: Path, other: Path, rounds: int, requests: int) -> None:
    texts = paragraphs()
    with running([server_of(other, model), server_of(REPOSITORY, model)]) as servers:
        for size in SIZES:
            for form, (path, bodies) in bodies_of(size, texts).items():
                milliseconds_of: list[list[float]] = [[] for _ in servers]
                for server in servers:
                    milliseconds(server, path, bodies, BATCHES)
                for _ in range(rounds):
                    for server, own in zip(servers, milliseconds_of, strict=True):
                        own.append(milliseconds(server, path, bodies, requests))
                theirs, this = map(statistics.median, milliseconds_of)
                print(
                    f"{name:10}{size:4} texts, {form:8} {theirs:7.2f} ms there {this:7.2f} ms here "
                    f"({this / theirs:.2f} x)",
                    flush=True,
                )


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--against", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=20)
    options = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "0"
    with tempfile.TemporaryDirectory() as folder:
        for name, model in (("Unigram", model2vec_folder()), ("WordPiece", wordpiece_model(Path(folder)))):
            compare(name, model, options.against.resolve(), options.rounds, options.requests)


if __name__ == "__main__":
    main()
