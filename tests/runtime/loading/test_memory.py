"""The memory that loading takes at its highest, in a process of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from embedserve_runtime.model import families
from embedserve_runtime.model.folder import read_folder
from tests.support.models import minilm_folder

pytestmark = pytest.mark.thorough

# Prints by how many bytes the greatest resident size while loading is above that of the libraries alone.
PROGRAM = """
import re, sys
from pathlib import Path
from embedserve_runtime.loading import runners
from embedserve_runtime.config import load_config

engine, precision, folder = sys.argv[1:]
if engine == "torch":
    import embedserve_runtime.engines.torch.engine

def kilobytes(name):
    return int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text()).group(1))

before = kilobytes("VmRSS")
flags = {"model": {"source": folder}, "engine": {"kind": engine, "precision": precision, "threads": 1}}
runner = runners.load_runner(load_config(flags=flags))
print((kilobytes("VmHWM") - before) * 1024)
"""
MAX_PEAK = 1.3  # of the model's size in the precision in which it runs


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A BERT in float16 on disk, and its number of parameters: 38 million."""
    folder = tmp_path_factory.mktemp("large")
    shape = {"hidden_size": 768, "num_hidden_layers": 4, "num_attention_heads": 12, "intermediate_size": 3072}
    sizes = {"vocab_size": 12_000, "max_position_embeddings": 512}
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"} | sizes | shape))
    shutil.copy(minilm_folder() / "tokenizer.json", folder)
    encoder = families.describe(read_folder(folder))
    sources = encoder.parameter_names.sources
    tensors = {
        sources[parameter.pattern][0].tensor.format(layer=parameter.layer): np.full(
            parameter.shape, 0.01, dtype=np.float16
        )
        for parameter in encoder.parameters()
    }
    save_file(tensors, folder / "model.safetensors")
    return folder, sum(tensor.size for tensor in tensors.values())


@pytest.mark.parametrize(
    ("engine", "precision", "bytes_each"),
    [("onnx", "float32", 4), ("torch", "float32", 4)],
)
def test_loading_takes_at_most_a_third_more_than_the_model(
    model: tuple[Path, int], engine: str, precision: str, bytes_each: int
) -> None:
    folder, parameters = model
    peak = subprocess.run(
        [sys.executable, "-c", PROGRAM, engine, precision, str(folder)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert int(peak) <= MAX_PEAK * parameters * bytes_each
