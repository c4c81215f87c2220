"""The fused kernels by Triton's interpreter, on the CPU in float32, against the literal reading of a few
forms; all forms are in `test_cuda.py`, where there is a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from embedserve_runtime.engines.torch.fused.support import EightBit
from tests.support.tolerances import EIGHT_BIT_MIN_COSINE, TINY_MODEL_MAX_ABS_DIFF

pytestmark = pytest.mark.thorough

FORMS = (
    "three layers alike",
    "grouped heads, window, rotary",
    "learned bias, causal, window",
    "capped scores, causal window, grouped heads, rotary",
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

from embedserve_runtime.forward.batch import PackedBatch
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
        fused = FusedEncoder.build(encoder, Parameters(weights, torch.device("cpu"), torch.float32))
        storage = torch.empty(capacity.integers, dtype=torch.int32)
        copy_in(batch, capacity, storage)
        hidden = fused(DeviceBatch.view_storage(storage, capacity))[: batch.tokens].numpy()
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


# What a card without Gluon runs, for as few tokens as the interpreter has patience for.
EIGHT_BIT = """
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from safetensors.numpy import save_file

from embedserve_runtime.forward.cosines import compute_cosines
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.engines.torch.device_batch import copy_to_device
from embedserve_runtime.engines.torch.fused import eight_bit_stack
from embedserve_runtime.engines.torch.fused.encoder import FusedEncoder
from embedserve_runtime.engines.torch.fused.support import EightBit
from embedserve_runtime.engines.torch.parameters import Parameters
from embedserve_runtime.model.checkpoint import Checkpoint, Weights
from tests.runtime.engines.naive import Naive
from tests.runtime.engines.test_forms import LAYERS, VOCABULARY, encoder_of, random_parameters

form, kind, minor = sys.argv[1:]
torch.cuda.get_device_capability = lambda *_: (8, int(minor))
torch.cuda.get_device_properties = lambda *_: SimpleNamespace(multi_processor_count=2)
eight_bit_stack.SAMPLE_LENGTH, eight_bit_stack.SAMPLE_TOKENS = 16, 64
source = np.random.default_rng(1)
batch = PackedBatch.pack([source.integers(0, VOCABULARY, n).astype(np.int32) for n in (9, 1, 16, 2)])
plain = encoder_of(LAYERS[form])
layer = plain.layers[0]
attention = replace(layer.attention, heads=4, kv_heads=2, head_size=16)
layers = (replace(layer, attention=attention, mlp=replace(layer.mlp, intermediate=64)),) * 2
encoder = replace(plain, hidden_size=64, layers=layers)
values = random_parameters(encoder)
with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
    save_file(dict(values), Path(folder) / "model.safetensors")
    weights = Weights(encoder, Checkpoint.open(Path(folder)))
    parameters = Parameters(weights, torch.device("cpu"), torch.float32)
    hidden = [
        FusedEncoder.build(encoder, parameters, eight_bit=EightBit(kind), texts=texts)(
            copy_to_device(batch, torch.device("cpu"))
        ).numpy()
        for texts in (None, batch)
    ]
wide = {name: value.astype(np.float64) for name, value in values.items()}
want = Naive(encoder, wide).hidden_states(batch)
print(min(compute_cosines(one, want).min() for one in hidden))
"""


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize(
    ("kind", "minor"),
    [
        pytest.param(EightBit.FP8, "9", id="fp8 on Ada"),
        pytest.param(EightBit.INT8, "9", id="int8 on Ada"),
        pytest.param(EightBit.INT8, "0", id="int8 on Ampere, without e4m3"),
    ],
)
@pytest.mark.parametrize("form", ["three layers alike", "RMS norms after", "norms first"])
def test_the_kernels_in_8_bit_stay_close_to_what_descriptions_say(
    kind: EightBit, minor: str, form: str
) -> None:
    answer = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", EIGHT_BIT, form, kind, minor],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert float(answer.stdout) >= EIGHT_BIT_MIN_COSINE
