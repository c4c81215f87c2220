"""Who else reads a folder of Model2Vec: the package `model2vec`, and the crate `model2vec-rs` in a small program."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

PROJECT = Path(__file__).parent / "model2vec_rs"


class NotBuilt(Exception):
    """Why there is no Rust reader."""


def build_rust_reader() -> Path:
    """The program, built at most once into the user's cache folder; some three minutes of CPU. Raises NotBuilt."""
    cargo = shutil.which("cargo") or shutil.which("cargo", path=str(Path.home() / ".cargo" / "bin"))
    if cargo is None:
        raise NotBuilt("cargo is not installed")
    base = os.environ.get("XDG_CACHE_HOME")
    home = (Path(base) if base else Path.home() / ".cache") / "embedserve" / "model2vec-rs"
    # Built there, since cargo writes its lock file beside the project.
    shutil.copytree(PROJECT, home / "project", dirs_exist_ok=True)
    command = [cargo, "build", "--release", "--quiet", "--target-dir", str(home)]
    built = subprocess.run(command, cwd=home / "project", capture_output=True, text=True, check=False)
    if built.returncode:
        raise NotBuilt(f"cargo build ended with {built.returncode}: {built.stderr.strip()[-300:]}")
    return home / "release" / "reader"


def rust_seconds(
    reader: Path, folder: Path, texts: Sequence[str], rounds: int, *, fresh: bool
) -> list[float]:
    """CPU seconds of each round of one process, on one thread. fresh: each round with a model that has read nothing."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".txt") as file:
        file.write("\n".join(texts))
        file.flush()
        command = [str(reader), str(folder), file.name, str(rounds), "fresh" if fresh else "same"]
        one_thread = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
        answer = subprocess.run(command, env=one_thread, capture_output=True, text=True, check=True)
    return [float(line.split()[0]) for line in answer.stdout.splitlines()]
