"""The fused kernels by Triton's interpreter, on the CPU in float32, against the literal reading of a few
forms; all forms are in `test_cuda.py`, where there is a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.support.tolerances import TINY_MODEL_MAX_ABS_DIFF

pytestmark = pytest.mark.thorough

FORMS = (
    "three layers alike",
    "grouped heads, window, rotary",
    "learned bias, causal, window",
    "norms around",
    "disentangled",
    "gated",
)

# In a process of its own: Triton decides at import whether to interpret, and others may have imported it.
PROGRAM = """
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file

from embedserve_runtime.engines.base import PackedBatch
from embedserve_runtime.engines.torch.device_batch import Capacity, DeviceBatch, copy_in
from embedserve_runtime.engines.torch.fused.encoder import FusedEncoder
from embedserve_runtime.engines.torch.parameters import Parameters
from embedserve_runtime.model.checkpoint import Checkpoint, Weights
from tests.runtime.engines.naive import Naive
from tests.runtime.engines.test_forms import LAYERS, VOCABULARY, encoder_of, random_parameters

source = np.random.default_rng(1)
batch = PackedBatch.pack([source.integers(0, VOCABULARY, n).astype(np.int32) for n in (9, 1, 16, 2)])
capacity = Capacity(batch.tokens + 3, len(batch.lengths) + 1)
for form in sys.argv[1:]:
    encoder = encoder_of(LAYERS[form])
    parameters = random_parameters(encoder)
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        save_file(dict(parameters), Path(folder) / "model.safetensors")
        weights = Weights(encoder, Checkpoint.open(Path(folder)))
        fused = FusedEncoder(encoder, Parameters(weights, torch.device("cpu"), torch.float32))
        storage = torch.empty(capacity.integers, dtype=torch.int32)
        copy_in(batch, capacity, storage)
        hidden = fused(DeviceBatch.over(storage, capacity))[: batch.tokens].numpy()
    wide = {name: value.astype(np.float64) for name, value in parameters.items()}
    want = Naive(encoder, wide).hidden_states(batch)
    print(float(np.abs(hidden - want).max() / max(1.0, np.abs(want).max())))
"""


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
def test_the_fused_kernels_compute_what_descriptions_say_whatever_room_the_layout_has_left() -> None:

    answer = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, *FORMS],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    differences = [float(line) for line in answer.stdout.split()]
    assert len(differences) == len(FORMS)
    assert max(differences) <= TINY_MODEL_MAX_ABS_DIFF
