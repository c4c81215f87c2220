"""A model that has room on the device in 8 bit alone is compared with its own 16 bit, one layer of which is in memory
at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from math import prod
from pathlib import Path

from tests.support.random_models import save_random_model

LAYERS = 6
# In a process of its own: memory that one pass has freed would be there for the other.
RUNS_ONE_PASS = """
import sys
from pathlib import Path
import numpy as np
import torch
from embedserve_runtime.engines.torch.engine import ForwardOptions, TorchEngine
from embedserve_runtime.engines.torch.kernels import KernelKind
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.model import families
from embedserve_runtime.model.checkpoint import Checkpoint, Weights
from embedserve_runtime.model.folder import read_folder

def read_status(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(field))) / 1024

folder, streamed = Path(sys.argv[1]), sys.argv[2] == "True"
encoder = families.describe(read_folder(folder))
weights = Weights(encoder, Checkpoint.open(folder))
options = ForwardOptions(KernelKind.GROUPED, streamed=streamed)
before = read_status("VmRSS:")
Path("/proc/self/clear_refs").write_text("5")
engine = TorchEngine(encoder, weights, torch.device("cpu"), torch.float32, options)
rows = engine.forward(PackedBatch.pack([np.arange(5, dtype=np.int32)]))
print(read_status("VmHWM:") - before, float(np.abs(rows).sum()))
"""


def run_pass(folder: Path, *, streamed: bool) -> tuple[float, float]:
    """Return how far the process grew, in MiB, and the sum of what it computed."""
    program = [sys.executable, "-c", RUNS_ONE_PASS, str(folder), str(streamed)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    output = subprocess.run(program, env=environment, check=True, capture_output=True, text=True).stdout
    growth, total = map(float, output.split())
    return growth, total


def test_a_streamed_pass_has_one_layer_in_memory_and_gives_the_same_rows(tmp_path: Path) -> None:
    encoder = save_random_model("bge-base-en-v1.5", tmp_path, layers=LAYERS)
    layer_mib = 4 * sum(prod(one.shape) for one in encoder.parameters() if one.layer == 0) / 2**20
    assert layer_mib > 20, "otherwise the test shows nothing"
    streamed, rows = run_pass(tmp_path, streamed=True)
    loaded, want_rows = run_pass(tmp_path, streamed=False)
    assert loaded - streamed > (LAYERS - 3) * layer_mib
    assert rows == want_rows
