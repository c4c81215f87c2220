"""The engine that runs a model: the choice, its reasons, and that torch is imported only when it is chosen."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib import util
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from embedserve_runtime.config import EngineSettings
from embedserve_runtime.engines.torch import support as torch_support
from embedserve_runtime.engines.torch.engine import TorchEngine
from embedserve_runtime.errors import ConfigError, UnsupportedArchitecture
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.loading.engine_choice import check_graph, check_static, choose_engine
from embedserve_runtime.loading.engines import open_engines
from embedserve_runtime.model import families
from embedserve_runtime.model.checkpoint import Checkpoint, Weights
from embedserve_runtime.model.folder import read_folder
from tests.runtime.engines.cases import BERT
from tests.runtime.engines.test_forms import LAYERS, encoder_of
from tests.support.tolerances import TINY_MODEL_MAX_ABS_DIFF

ENCODER = encoder_of(LAYERS["causal"])


@pytest.mark.parametrize(
    ("settings", "want_kind"),
    [
        pytest.param(EngineSettings(), "onnx", id="onnx is preferred"),
        pytest.param(EngineSettings(kind="torch"), "torch", id="torch when asked for"),
        pytest.param(EngineSettings(precision="float32"), "onnx", id="onnx has float32"),
        pytest.param(EngineSettings(precision="bfloat16"), "torch", id="torch has 16 bit"),
        pytest.param(EngineSettings(precision="float16"), "torch", id="torch has float16"),
        pytest.param(EngineSettings(kind="onnx", precision="float16"), "onnx", id="onnx may have converted"),
        pytest.param(EngineSettings(precision="fp8"), "torch", id="torch has 8 bit"),
        pytest.param(EngineSettings(attention="grouped"), "torch", id="torch has several attentions"),
        pytest.param(EngineSettings(devices=2), "torch", id="torch has several devices"),
        pytest.param(EngineSettings(device="cuda"), "torch", id="torch has GPUs"),
        pytest.param(EngineSettings(device="cpu"), "onnx", id="onnx is preferred on the CPU"),
    ],
)
def test_the_first_engine_that_can_is_chosen(settings: EngineSettings, want_kind: str) -> None:
    assert choose_engine(ENCODER, settings) == want_kind


@pytest.mark.parametrize(
    ("settings", "want_message"),
    [
        pytest.param(
            EngineSettings(precision="fp8"),
            r"onnx: it runs in float32, and fp8 is asked for; torch: torch is not installed \(pip install",
            id="both reasons when none can",
        ),
        pytest.param(
            EngineSettings(kind="onnx", precision="fp8"),
            "encoder: onnx: it runs in float32[^;]*$",
            id="onnx forced",
        ),
        pytest.param(
            EngineSettings(kind="torch"), "encoder: torch: torch is not installed", id="torch forced"
        ),
        pytest.param(
            EngineSettings(kind="onnx", device="cuda"),
            r"encoder: onnx: it runs on the CPU, and engine\.device asks for cuda$",
            id="onnx on a GPU",
        ),
    ],
)
def test_no_engine_is_an_unsupported_architecture_with_the_reasons(
    monkeypatch: pytest.MonkeyPatch, settings: EngineSettings, want_message: str
) -> None:
    monkeypatch.setattr(
        torch_support, "find_spec", lambda name: None if name == "torch" else util.find_spec(name)
    )
    with pytest.raises(UnsupportedArchitecture, match=want_message):
        choose_engine(ENCODER, settings)


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_16_bit_is_left_to_what_was_converted_where_torch_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, precision: Literal["float16", "bfloat16"]
) -> None:
    monkeypatch.setattr(
        torch_support, "find_spec", lambda name: None if name == "torch" else util.find_spec(name)
    )
    assert choose_engine(ENCODER, EngineSettings(precision=precision)) == "onnx"


def test_the_torch_engine_runs_what_the_settings_ask_for(tmp_path: Path) -> None:
    case = BERT[0]
    reference = case.build(tmp_path)
    encoder = families.describe(read_folder(tmp_path))
    settings = EngineSettings(kind="torch", precision="float32", threads=1)
    engine = open_engines(encoder, Weights(encoder, Checkpoint.open(tmp_path)), settings)[0]
    assert isinstance(engine, TorchEngine)
    difference = engine.forward(case.batch()) - reference(case.batch())
    assert np.abs(difference).max() <= TINY_MODEL_MAX_ABS_DIFF


def test_a_real_model_gives_the_same_hidden_states_on_both_engines(minilm: Path) -> None:
    ids = np.array([101, 7592, 2088, 102], dtype=np.int32)
    batch = PackedBatch.pack([ids, ids[:2]])
    encoder = families.describe(read_folder(minilm))
    weights = Weights(encoder, Checkpoint.open(minilm))
    states = [
        open_engines(encoder, weights, EngineSettings(kind=kind, precision="float32", threads=1))[0].forward(
            batch
        )
        for kind in ("onnx", "torch")
    ]
    assert np.abs(states[0] - states[1]).max() <= TINY_MODEL_MAX_ABS_DIFF


def test_torch_is_not_imported_unless_it_is_needed(minilm: Path) -> None:
    program = (
        "import sys\n"
        "from embedserve_runtime.config import load_config\n"
        "from embedserve_runtime.loading.runners import load_runner\n"
        f"load_runner(load_config(flags={{'model': {{'source': {str(minilm)!r}}}}}))\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_gpu_that_is_not_there_stops_the_start(minilm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    encoder = families.describe(read_folder(minilm))
    weights = Weights(encoder, Checkpoint.open(minilm))
    with pytest.raises(ConfigError, match=r"engine\.device: cuda is asked for, torch sees no CUDA device"):
        open_engines(encoder, weights, EngineSettings(device="cuda"))


@pytest.mark.parametrize("check", [check_static, check_graph])
def test_what_torch_does_not_run_is_not_run_on_a_gpu(check: Callable[[EngineSettings], None]) -> None:
    check(EngineSettings(device="cpu"))
    with pytest.raises(ConfigError, match=r"engine\.device: cuda is for encoders on the torch"):
        check(EngineSettings(device="cuda"))
