"""Memory and time of one text on a CPU, by its length.

    python -m benchmarks.cpu_long_texts [NAME ...] [--layers N] [--lengths 512 ...] [--threads 1]

Models have the shape of well-known ones with random weights, and all layers unless `--layers` says how many. Each
length runs in a process of its own: its weights, its resident memory with the libraries, at its highest (VmHWM, set
back before the run) and once the text has run, and the CPU and wall seconds of the run. Needs Linux.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from math import prod
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from benchmarks.command_line import parser_of
from embedserve_runtime.engines.onnx.engine import OnnxEngine
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.model import families
from embedserve_runtime.model.architecture import Encoder
from embedserve_runtime.model.checkpoint import Checkpoint, Weights
from embedserve_runtime.model.folder import read_folder
from tests.support.model_shapes import CONFIGS, describe_shape

NAMES = ("ModernBERT-base", "nomic-embed-text-v1.5", "jina-embeddings-v2-base-en", "Qwen3-Embedding-0.6B")
LENGTHS = tuple(2**power for power in range(9, 16))
VOCABULARY = 2_048
"""Small enough for a warm-up to read each row: weights are in memory once they have been read."""
SPREAD = 0.02
"""Standard deviation of the weights, as models are initialized."""
MIB = 2**20


def save(name: str, folder: Path, layers: int | None) -> Encoder:
    """Write a model with random weights in float16."""
    encoder = describe_shape(name, folder, layers=layers, vocabulary=VOCABULARY)
    source = np.random.default_rng(0)
    prefix, sources = encoder.parameter_names.prefixes[0], encoder.parameter_names.sources
    tensors = {}
    for one in encoder.parameters():
        found = sources[one.pattern][0]
        shape = (one.shape[0] * found.parts, *one.shape[1:])
        values = SPREAD * source.standard_normal(shape[::-1] if found.transpose else shape, dtype=np.float32)
        # Weights of norms are about one.
        tensors[prefix + found.tensor.format(layer=one.layer)] = (values + (len(shape) == 1)).astype(
            np.float16
        )
    save_file(tensors, folder / "model.safetensors")
    return encoder


def read_status(field: str) -> int:
    """Return a size of this process, in bytes."""
    found = re.search(rf"{field}:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def run_one(folder: Path, length: int, threads: int) -> None:
    """Load the model, run one text and print what it took."""
    encoder = families.describe(read_folder(folder))
    engine = OnnxEngine.build(encoder, Weights(encoder, Checkpoint.open(folder)), threads)
    engine.forward(PackedBatch.pack(np.split(np.arange(VOCABULARY, dtype=np.int32), 8)))
    ids = np.random.default_rng(0).integers(0, VOCABULARY, length).astype(np.int32)
    Path("/proc/self/clear_refs").write_text("5")
    cpu, wall = time.process_time(), time.perf_counter()
    hidden = engine.forward(PackedBatch.pack([ids]))
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    assert np.isfinite(hidden).all()
    del hidden
    weights = 4 * sum(prod(parameter.shape) for parameter in encoder.parameters())
    sizes = {"weights": weights, "highest": read_status("VmHWM"), "after": read_status("VmRSS")}
    print(json.dumps(sizes | {"cpu": cpu, "wall": wall}))


def measure(name: str, layers: int | None, lengths: list[int], threads: int) -> None:
    """Print a row for each length that the model takes."""
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent)
        encoder = save(name, folder, layers)
        for length in (one for one in lengths if one <= encoder.max_positions):
            child = ["--child", str(folder), "--lengths", str(length), "--threads", str(threads)]
            output = subprocess.run(
                [sys.executable, "-m", "benchmarks.cpu_long_texts", *child],
                check=True,
                capture_output=True,
                text=True,
            ).stdout
            found = json.loads(output.splitlines()[-1])
            sizes = " | ".join(f"{found[key] / MIB:,.0f}" for key in ("weights", "highest", "after"))
            print(
                f"| {name} | {len(encoder.layers)} | {length:,} | {sizes} | {found['cpu']:.2f} | "
                f"{found['wall']:.2f} | {os.getloadavg()[0]:.1f} |",
                flush=True,
            )


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("names", nargs="*", default=NAMES, metavar="NAME", choices=[*CONFIGS, NAMES])
    parser.add_argument("--layers", type=int)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--child", type=Path, help="a folder that one text is run with, in this process")
    given = parser.parse_args()
    if given.child:
        run_one(given.child, given.lengths[0], given.threads)
        return
    print("| model | layers | tokens | weights, MiB | highest | after | CPU s | wall s | load average |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in given.names:
        measure(name, given.layers, given.lengths, given.threads)


if __name__ == "__main__":
    main()
