"""The servers that `benchmarks.cpu` compares: how each is started, asked, and, for one of them, installed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.layout import cache_folder

REPOSITORY = Path(__file__).resolve().parents[1]
INFINITY_LOCK = REPOSITORY / "requirements" / "infinity.txt"
OURS = "embedserve"


@dataclass(frozen=True, slots=True)
class Peer:
    """path: where texts are embedded. body: of a request for these texts."""

    name: str
    command: Sequence[str]
    port: int
    path: bytes
    body: Callable[[Sequence[str]], bytes]


def ours(model: Path, port: int) -> Peer:
    start = "import sys; from embedserve_runtime.cli import main; sys.exit(main())"
    words = [sys.executable, "-c", start, "serve", "--model", str(model), "--port", str(port)]
    return Peer(OURS, words, port, b"/embed", _tei_body)


def sentence_transformers(model: Path, port: int) -> Peer:
    words = [sys.executable, "-m", "benchmarks.fastapi_peer", str(model), str(port)]
    return Peer("sentence-transformers + FastAPI", words, port, b"/embed", _tei_body)


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
    words = [str(folder / "bin" / "infinity_emb"), "v2", "--model-id", str(model), "--port", str(port)]
    words += ["--engine", "torch", "--device", "cpu", "--dtype", "float32", "--served-model-name", "peer"]
    return Peer("infinity-emb", [*words, "--no-bettertransformer"], port, b"/embeddings", _openai_body)


def _tei_body(texts: Sequence[str]) -> bytes:
    return json.dumps({"inputs": list(texts)}).encode()


def _openai_body(texts: Sequence[str]) -> bytes:
    return json.dumps({"model": "peer", "input": list(texts)}).encode()
