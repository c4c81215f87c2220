"""Properties of the torch engine alone: 16 bit, dtypes on disk, slices of long blocks, the choice of a kernel."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from embedserve_runtime.engines.torch import kernels
from embedserve_runtime.engines.torch.engine import TorchEngine
from embedserve_runtime.engines.torch.kernels import find_varlen_obstacle
from embedserve_runtime.engines.torch.packing import PackedTokens
from embedserve_runtime.errors import EngineFailure
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.model.architecture import Alibi, Attention, Encoder
from embedserve_runtime.model.checkpoint import Checkpoint, Weights
from tests.runtime.engines.engines import ENGINES
from tests.runtime.engines.test_forms import (
    ATTENTION,
    DEBERTA,
    LAYERS,
    MAX_TOKENS,
    VOCABULARY,
    encoder_of,
    random_batch,
    random_parameters,
)
from tests.support.tolerances import NEIGHBOUR_MAX_ABS_DIFF, SIXTEEN_BIT_MIN_COSINE

CPU = torch.device("cpu")
SIXTEEN_BIT = (torch.bfloat16, torch.float16)


def saved(folder: Path, encoder: Encoder, dtype: torch.dtype = torch.float32) -> Weights:
    parameters = random_parameters(encoder)
    tensors = {name: torch.from_numpy(value).to(dtype) for name, value in parameters.items()}
    save_file(tensors, folder / "model.safetensors")
    return Weights(encoder, Checkpoint.open(folder))


def forward(encoder: Encoder, weights: Weights, dtype: torch.dtype = torch.float32) -> FloatArray:
    return TorchEngine(encoder, weights, CPU, dtype).forward(random_batch())


@pytest.mark.parametrize("dtype", SIXTEEN_BIT, ids=str)
@pytest.mark.parametrize("form", LAYERS)
def test_16_bit_stays_close_to_float32(tmp_path: Path, form: str, dtype: torch.dtype) -> None:
    encoder = encoder_of(LAYERS[form])
    weights = saved(tmp_path, encoder)
    want, hidden = forward(encoder, weights), forward(encoder, weights, dtype)
    assert hidden.dtype == np.float32
    norms = np.linalg.norm(want, axis=1) * np.linalg.norm(hidden, axis=1)
    assert ((want * hidden).sum(axis=1) / norms).min() >= SIXTEEN_BIT_MIN_COSINE


@pytest.mark.parametrize("dtype", SIXTEEN_BIT, ids=str)
@pytest.mark.parametrize("engine", ENGINES)
def test_16_bit_weights_on_disk_are_read_exactly(tmp_path: Path, engine: str, dtype: torch.dtype) -> None:
    encoder = encoder_of(LAYERS["gated"])
    weights = saved(tmp_path, encoder, dtype)
    hidden = ENGINES[engine].build(encoder, weights).forward(random_batch())
    widened = {name: value.float() for name, value in load_file(tmp_path / "model.safetensors").items()}
    save_file(widened, tmp_path / "model.safetensors")
    reloaded = ENGINES[engine].build(encoder, Weights(encoder, Checkpoint.open(tmp_path)))
    np.testing.assert_array_equal(hidden, reloaded.forward(random_batch()))


def test_bfloat16_weights_are_read_by_a_process_that_has_imported_nothing_else(tmp_path: Path) -> None:
    saved(tmp_path, encoder_of(()), torch.bfloat16)
    program = (
        "from pathlib import Path\n"
        "from embedserve_runtime.model.checkpoint import Checkpoint\n"
        f"checkpoint = Checkpoint.open(Path({str(tmp_path)!r}))\n"
        "print(checkpoint.read_tensor('embeddings.word.weight').dtype)\n"
    )
    answer = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert answer.stdout.strip() == "bfloat16"


@pytest.mark.parametrize("form", LAYERS)
def test_a_block_in_slices_gives_the_hidden_states_of_the_whole_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    encoder = encoder_of(LAYERS[form])
    weights = saved(tmp_path, encoder)
    whole = forward(encoder, weights)
    # Three queries of the longest sequence at a time.
    monkeypatch.setattr(kernels, "MASK_ELEMENTS", 3 * 3 * MAX_TOKENS)
    assert np.abs(forward(encoder, weights) - whole).max() <= NEIGHBOUR_MAX_ABS_DIFF


@pytest.mark.parametrize(
    ("sequence", "want_message"),
    [
        pytest.param(
            [1, VOCABULARY], "batch of 2 tokens has ids from 1 to 31", id="an id beyond the vocabulary"
        ),
        pytest.param([-1, 0], "batch of 2 tokens has ids from -1 to 0", id="a negative id"),
        pytest.param([0] * (MAX_TOKENS + 1), "a sequence of 41, the encoder takes 40", id="too long"),
    ],
)
def test_an_index_outside_a_table_fails_the_batch_before_the_device_sees_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sequence: list[int], want_message: str
) -> None:
    encoder = encoder_of(LAYERS["causal"])
    engine = TorchEngine(encoder, saved(tmp_path, encoder), CPU, torch.float32)
    monkeypatch.setattr(PackedTokens, "copy_to_device", None)
    with pytest.raises(EngineFailure, match=want_message):
        engine.forward(PackedBatch.pack([np.array(sequence, dtype=np.int32)]))


CUDA, HALF = torch.device("cuda", 0), torch.bfloat16
Capability = tuple[int, int]
KERNELS: dict[str, tuple[tuple[Attention, torch.device, torch.dtype], Capability, str | None]] = {
    "Hopper, 16 bit": ((ATTENTION, CUDA, HALF), (9, 0), None),
    "Ampere, window, causal": ((replace(ATTENTION, causal=True, window=3), CUDA, HALF), (8, 0), None),
    "Turing": ((ATTENTION, CUDA, torch.float16), (7, 5), "compute capability 8.0, the device has 7.5"),
    "CPU": ((ATTENTION, CPU, HALF), (9, 0), "is for CUDA"),
    "float32": ((ATTENTION, CUDA, torch.float32), (9, 0), "is for 16 bit"),
    "ALiBi": ((replace(ATTENTION, distance_bias=Alibi((1.0,) * 3)), CUDA, HALF), (9, 0), "position terms"),
    "disentangled": ((replace(ATTENTION, disentangled=DEBERTA), CUDA, HALF), (9, 0), "position terms"),
    "odd head size": ((replace(ATTENTION, head_size=12), CUDA, HALF), (9, 0), "up to 256, not 12"),
}


@pytest.mark.parametrize(("form", "capability", "want_reason"), KERNELS.values(), ids=KERNELS.keys())
def test_the_packed_kernel_is_for_what_it_can_compute(
    monkeypatch: pytest.MonkeyPatch,
    form: tuple[Attention, torch.device, torch.dtype],
    capability: Capability,
    want_reason: str | None,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    reason = find_varlen_obstacle(*form)
    assert reason is None if want_reason is None else want_reason in str(reason)
