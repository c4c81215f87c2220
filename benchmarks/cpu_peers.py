"""The servers that `benchmarks.cpu` compares: how each is started, asked, and, for two of them, prepared."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path

import uvloop

from benchmarks.cpu_cases import Case
from benchmarks.load import load
from e2e.cluster.layout import cache_folder
from embedserve_runtime.telemetry.metrics import read_cpu_seconds

REPOSITORY = Path(__file__).resolve().parents[1]
INFINITY_LOCK = REPOSITORY / "requirements" / "infinity.txt"
OURS, EIGHT_BIT = "embedserve", "embedserve, 8 bit"
COMMAND = [
    sys.executable,
    "-c",
    "import sys; from embedserve_runtime.commands.cli import main; sys.exit(main())",
]
JSON = {"content-type": "application/json"}
START_SECONDS = 300
# After SIGTERM, to a server that was asked to end.
END_SECONDS = 20


@dataclass(frozen=True, slots=True)
class Peer:
    """path: where texts are embedded. body: of a request for these texts."""

    name: str
    command: Sequence[str]
    port: int
    path: bytes
    body: Callable[[Sequence[str]], bytes]
    environment: Mapping[str, str] = field(default_factory=dict)


def ours(model: Path, port: int) -> Peer:
    return _ours(OURS, "float32", model, port)


def eight_bit(model: Path, port: int) -> Peer:
    """Out of the converted artifact, above the floor of quality that publishes one. Raises CalledProcessError."""
    command = [*COMMAND, "convert", "--model", str(model), "--store", str(store())]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return _ours(EIGHT_BIT, "int8", model, port)


def _ours(name: str, precision: str, model: Path, port: int) -> Peer:
    command = [*COMMAND, "serve", "--model", str(model), "--port", str(port), "--store", str(store())]
    return Peer(name, command, port, b"/embed", _tei_body, {"EMBEDSERVE_ENGINE__PRECISION": precision})


def store() -> Path:
    return cache_folder() / "benchmarks" / "store"


def sentence_transformers(model: Path, port: int) -> Peer:
    command = [sys.executable, "-m", "benchmarks.fastapi_peer", str(model), str(port)]
    return Peer("sentence-transformers + FastAPI", command, port, b"/embed", _tei_body)


def infinity(model: Path, port: int) -> Peer:
    """Installed on first use, from its own lock file into the user's cache folder: it needs an older numpy. Raises
    CalledProcessError where that cannot be done."""
    folder = cache_folder() / "peers" / "infinity"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        print("installing infinity-emb (first run only, some GB)", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        uv, lock = str(REPOSITORY / ".venv/bin/uv"), str(INFINITY_LOCK)
        install = [uv, "pip", "sync", "--quiet", "--require-hashes", "--python", str(python), lock]
        subprocess.run(install, check=True)
        (folder / "complete").touch()
    command = [str(folder / "bin" / "infinity_emb"), "v2", "--model-id", str(model), "--port", str(port)]
    command += ["--engine", "torch", "--device", "cpu", "--dtype", "float32", "--served-model-name", "peer"]
    return Peer("infinity-emb", [*command, "--no-bettertransformer"], port, b"/embeddings", _openai_body)


def _tei_body(texts: Sequence[str]) -> bytes:
    return json.dumps({"inputs": list(texts)}).encode()


def _openai_body(texts: Sequence[str]) -> bytes:
    return json.dumps({"model": "peer", "input": list(texts)}).encode()


class Running:
    """A server's process, from its start on."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self._started = time.perf_counter()
        # The threads of a server are its own choice, as they would be anywhere else.
        environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        self.process = subprocess.Popen(
            peer.command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment | dict(peer.environment),
        )

    def wait(self) -> float:
        """Seconds from the start to the first vector. Raises RuntimeError where none comes."""
        while not self.answers():
            self.check()
            time.sleep(0.02)
        return time.perf_counter() - self._started

    def check(self) -> None:
        """Raises RuntimeError where the server has ended, or has been starting for too long."""
        if self.process.poll() is not None:
            raise RuntimeError(f"{self.peer.name} ended with {self.process.returncode}")
        if time.perf_counter() - self._started > START_SECONDS:
            raise RuntimeError(f"{self.peer.name} gives no vector within {START_SECONDS} s")

    def answers(self) -> bool:
        return self.status(self.peer.path, self.peer.body(["a"])) == HTTPStatus.OK

    def status(self, path: bytes, body: bytes | None = None) -> int | None:
        """Of the answer; None where there is none."""
        # Not a client that takes as much of the cores as the server that it waits for.
        connection = http.client.HTTPConnection("127.0.0.1", self.peer.port, timeout=START_SECONDS)
        try:
            connection.request("GET" if body is None else "POST", path.decode(), body, JSON)
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def memory(self) -> float:
        """Resident MiB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found, status
        return int(found.group(1)) / 1024

    def cpu_seconds(self) -> float:
        """Of all its threads and of the processes that it has started, until now."""
        own = Path(f"/proc/{self.process.pid}")
        started = [pid for one in own.glob("task/*/children") for pid in one.read_text().split()]
        return sum(map(read_cpu_seconds, (self.process.pid, *map(int, started))))

    def running_seconds(self) -> float:
        """CPU seconds of its own threads, to the microsecond, without those that have ended."""
        own = Path(f"/proc/{self.process.pid}/task")
        return sum(int(file.read_text().split()[0]) for file in own.glob("*/schedstat")) / 1e9

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def run(self, case: Case, seconds: float) -> list[float]:
        """Seconds of each answer."""
        bodies = [self.peer.body(texts) for texts in case.requests]
        latencies: list[float] = uvloop.run(
            load(self.peer.port, self.peer.path, bodies, case.connections, seconds)
        )
        self.answers()  # behind what the load has left in the server
        return latencies
