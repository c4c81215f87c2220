"""Fetching a large model against one plain download of the same bytes to the same disk.

Both end with the bytes on the disk (fsync). The fetch also hashes every byte, compares it with the hub's checksum and
makes the store's links. The bar is 80 % of the plain download's rate.

    python -m benchmarks.fetch [--gigabytes 2] [--folder DIR]
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.command_line import parser_of
from embedserve_runtime.config import ModelSettings
from embedserve_runtime.sources import fetch_model
from embedserve_runtime.sources.progress import Progress

REPOSITORY = "lab/large"
CONFIG = {
    "model_type": "bert",
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "intermediate_size": 8,
    "vocab_size": 8,
    "max_position_embeddings": 8,
}
ROUNDS = 3
CHUNK = 1 << 20


def write_repository(root: Path, size: int) -> None:
    """Random bytes: a disk that compresses must not win."""
    folder = root / REPOSITORY / "main"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    with (folder / "model.safetensors").open("wb") as file:
        for _ in range(size // CHUNK):
            file.write(os.urandom(CHUNK))
        os.fsync(file.fileno())


def plain_download(url: str, target: Path) -> None:
    """curl, and then its bytes are had on the disk."""
    subprocess.run(["curl", "--silent", "--show-error", "--fail", "--output", target, url], check=True)
    with target.open("rb") as file:
        os.fsync(file.fileno())


def timed(work: Callable[[], None]) -> tuple[float, float]:
    """Seconds of the wall, and of this process's CPU."""
    os.sync()
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def phases(progress: Progress, ended: threading.Event) -> dict[str, float]:
    """Seconds that were spent in each phase."""
    spent: dict[str, float] = {}
    while not ended.wait(0.01):
        phase = progress.get_state().phase
        spent[phase] = spent.get(phase, 0.0) + 0.01
    return spent


def fetch_with_profile(settings: ModelSettings) -> dict[str, float]:
    progress, ended, spent = Progress(), threading.Event(), dict[str, float]()
    watcher = threading.Thread(target=lambda: spent.update(phases(progress, ended)))
    watcher.start()
    try:
        fetch_model(settings, progress)
    finally:
        ended.set()
        watcher.join()
    return spent


def main(arguments: list[str]) -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument(
        "--folder", type=Path, help="on the disk that is measured (default: the one for temporary files)"
    )
    options = parser.parse_args(arguments)
    size = int(options.gigabytes * 1e9) // CHUNK * CHUNK
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        measure(Path(name), size)
    return 0


def measure(folder: Path, size: int) -> None:
    write_repository(folder / "repositories", size)
    # In a process of its own, as a hub is: its work must not share an interpreter with ours.
    hub = subprocess.Popen(
        [sys.executable, "-m", "e2e.hub", "--root", folder / "repositories", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert hub.stdout is not None
        url = hub.stdout.readline().split()[-1]
        settings = ModelSettings(source=REPOSITORY, endpoint=url, store=folder / "store")
        weights = f"{url}/{REPOSITORY}/resolve/main/model.safetensors"
        subprocess.run(
            ["curl", "--silent", "--head", "--output", "/dev/null", weights], check=True
        )  # hashes once
        ratios = [one_round(folder, size, weights, settings) for _ in range(ROUNDS)]
    finally:
        hub.terminate()
        hub.wait()
    print(f"median ratio {sorted(ratios)[len(ratios) // 2]:.2f} (bar 0.80)")


def one_round(folder: Path, size: int, weights: str, settings: ModelSettings) -> float:
    target = folder / "plain"
    plain_s, _ = timed(lambda: plain_download(weights, target))
    target.unlink()
    spent: dict[str, float] = {}
    fetch_s, cpu_s = timed(lambda: spent.update(fetch_with_profile(settings)))
    shutil.rmtree(settings.store)
    profile = ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in spent.items())
    print(
        f"plain {size / plain_s / 1e6:.0f} MB/s, fetch {size / fetch_s / 1e6:.0f} MB/s, ratio {plain_s / fetch_s:.2f}; "
        f"fetch: {profile}, CPU {cpu_s:.1f} s",
        flush=True,
    )
    return plain_s / fetch_s


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
