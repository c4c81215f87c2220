"""Whole models on a CUDA device: 8 bit that is near enough and 8 bit that is not, and kernels kept for the next pod."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import XLMRobertaConfig, XLMRobertaModel

from embedserve_runtime.config import EngineSettings, ModelSettings, RuntimeConfig
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.outputs import OutputKind
from embedserve_runtime.loading.runners import load_runner
from embedserve_runtime.parity.eight_bit import build_sample
from embedserve_runtime.runners.base import Runner
from embedserve_runtime.runners.fp32_fallback import AsyncFallbackRunner
from tests.runtime.pipelines.folders import tokens_of
from tests.runtime.runners.overflowing import FITS, OVERFLOWS, overflowing, runners
from tests.support.models import tiny
from tests.support.tiny_tokenizers import xlm_roberta_tokenizer
from tests.support.tolerances import TINY_MODEL_MAX_ABS_DIFF

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

# The second runs fused.
WIDTHS = {
    "24 wide": {},
    "64 wide": {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128},
}


def model(folder: Path, branches: float) -> Path:
    """A random model; branches: the size of what its layers add to the residual, and so of their errors."""
    config = XLMRobertaConfig(
        vocab_size=80,
        hidden_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=130,
    )
    built = tiny(folder, XLMRobertaModel, config)
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            if "encoder" in name and parameter.ndim == 2:
                parameter.mul_(branches)
    built.save_pretrained(folder)
    xlm_roberta_tokenizer(folder)
    return folder


def runner_of(folder: Path, precision: str) -> Runner:
    return load_runner(
        RuntimeConfig(
            model=ModelSettings(source=str(folder), store=folder / "store"),
            engine=EngineSettings.model_validate({"kind": "torch", "precision": precision}),
        )
    )


@pytest.mark.parametrize(
    ("precision", "branches", "runs"),
    [
        pytest.param("fp8", 0.1, "fp8", id="fp8 near enough"),
        pytest.param("int8", 0.1, "int8", id="int8 near enough"),
        pytest.param("fp8", 10.0, "bfloat16", id="fp8 too far"),
    ],
)
def test_8_bit_below_the_floor_falls_back_to_16_and_both_tell_what_was_measured(
    tmp_path: Path, precision: str, branches: float, runs: str
) -> None:
    folder = model(tmp_path, branches)
    runner = runner_of(folder, precision)
    facts = runner.engine
    assert facts.precision == runs
    assert facts.parity is not None
    assert (facts.parity.min_cosine >= EngineSettings().min_cosine) == (runs == precision)
    assert (facts.served_parity is not None) == (runs == precision)
    if runs != precision:
        batch = build_sample(runner.card)
        vectors, want = (
            each_runner.run(batch, OutputKind.DENSE).dense
            for each_runner in (runner, runner_of(folder, "auto"))
        )
        np.testing.assert_array_equal(vectors, want)


PROGRAM = """
import logging, sys
from pathlib import Path
from tests.runtime.engines.test_cuda_loading import runner_of
logging.basicConfig(level=logging.INFO)
runner_of(Path(sys.argv[1]), "auto")
"""


def test_a_second_process_compiles_nothing_that_the_first_one_kept_in_the_store(tmp_path: Path) -> None:
    folder = model(tmp_path / "model", 0.1)
    temporary = tmp_path / "temporary"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_CACHE_DIR"}
    logs = []
    for _ in range(2):
        temporary.mkdir()
        completed = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(folder)],
            env={**environment, "TMPDIR": str(temporary), "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        logs.append(completed.stderr)
        shutil.rmtree(temporary)
    first, second = logs
    assert "compiled kernels kept in the store" in first
    assert "compiled kernels taken from the store" in second
    assert "compiled kernels kept in the store" not in second


@pytest.mark.parametrize("recomputed", [1, 900], ids=["few tokens", "many tokens"])
@pytest.mark.parametrize("settings", WIDTHS.values(), ids=WIDTHS)
def test_what_overflows_in_float16_on_the_device_is_computed_again_while_the_next_batch_runs(
    tmp_path: Path, settings: dict[str, int], recomputed: int
) -> None:
    folder = overflowing(tmp_path, **settings)
    (reduced,), (exact,) = runners(folder, "float16"), runners(folder, "float32")
    assert isinstance(reduced, AsyncFallbackRunner)
    texts = [FITS] * recomputed + [OVERFLOWS]
    batches = [PackedBatch.pack(tokens_of(reduced.card, run)) for run in (texts, texts[::-1])]
    # Alone the runner looks through pooled rows, with hidden states the device does.
    for times, outputs in ((1, OutputKind.DENSE), (2, OutputKind.DENSE | OutputKind.HIDDEN)):
        under_way = [reduced.submit(batch, outputs) for batch in batches]
        for run, batch, part in zip(under_way, batches, (recomputed, 0), strict=True):
            got, want = run.results(), exact.run(batch, outputs)
            assert got.dense is not None
            assert want.dense is not None
            assert np.abs(got.dense[part] - want.dense[part]).max() <= TINY_MODEL_MAX_ABS_DIFF
            assert np.abs(got.dense - want.dense).max() <= 0.02
            if got.hidden is not None and want.hidden is not None:
                assert np.abs(got.hidden[part] - want.hidden[part]).max() <= TINY_MODEL_MAX_ABS_DIFF
        assert reduced.recomputed == 2 * times
