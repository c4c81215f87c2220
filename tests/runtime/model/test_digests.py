"""Digests of large tensors, which are read in blocks of rows."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from embedserve_runtime.model.checkpoint import BLOCK_BYTES, Checkpoint, Weights
from embedserve_runtime.model.digests import digest_tensors
from embedserve_runtime.model.identity import digest_tensor
from embedserve_runtime.model.tensors import ModelTensors
from tests.support.memory_group import limit_memory
from tests.support.random_models import save_random_model
from tests.support.tiny_models import build_card

FILE = "model.safetensors"
ROWS = 3 * BLOCK_BYTES // (4 * 256) + 5
"""Rows of 256 numbers that come in four blocks, the last of which is small."""
FETCH_LIMIT = 512 << 20
"""The memory that the operator gives what fetches (`embedserve_operator.manifests.memory.FETCH_BYTES`)."""
PROGRAM = """
import sys
from embedserve_runtime.commands.cli import main
sys.exit(main(["fetch", sys.argv[1], "--store", sys.argv[2]]))
"""


@pytest.mark.parametrize("suffix", [".safetensors", ".bin"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_tensor_in_blocks_has_the_digest_of_the_whole(
    tmp_path: Path, suffix: str, dtype: type[np.floating]
) -> None:
    large = np.random.default_rng(0).standard_normal((ROWS, 256), dtype=np.float32).astype(dtype)
    tensors = {"large": large, "scalar": np.array(2, dtype=dtype), "empty": large[:0], "vector": large[0]}
    path = tmp_path / f"model{suffix}"
    if suffix == ".bin":
        torch.save({name: torch.from_numpy(tensor.copy()) for name, tensor in tensors.items()}, path)
    else:
        save_file(tensors, path)
    checkpoint = Checkpoint([path])
    for name, tensor in tensors.items():
        blocks = list(checkpoint.read_blocks(name))
        assert max(block.size for block in blocks) * 4 <= BLOCK_BYTES
        assert np.array_equal(np.concatenate(blocks) if tensor.shape else blocks[0], tensor)
        assert checkpoint.count_bytes(name) == tensor.nbytes
    assert len(list(checkpoint.read_blocks("large"))) == 4


@pytest.mark.parametrize("shape", ["all-MiniLM-L6-v2", "ModernBERT-base", "nomic-embed-text-v1.5"])
def test_the_digests_of_an_encoder_are_those_of_its_parameters(tmp_path: Path, shape: str) -> None:
    """Some are parts of a tensor that the file has as one, and some are large."""
    encoder = save_random_model(shape, tmp_path, layers=1)
    weights = load_file(tmp_path / FILE)
    drawn = np.random.default_rng(0)
    save_file(
        {name: drawn.standard_normal(weight.shape).astype(np.float16) for name, weight in weights.items()},
        tmp_path / FILE,
    )
    card = replace(build_card(), encoder=encoder)
    digests = digest_tensors(card, ModelTensors(tmp_path)).encoder
    stored = Weights(encoder, Checkpoint.open(tmp_path))
    assert digests == {name: digest_tensor(stored.read_tensor(name)) for name in stored.names}


@pytest.mark.thorough
def test_a_model_with_a_table_that_is_larger_than_its_memory_is_fetched(tmp_path: Path) -> None:
    encoder = save_random_model("bge-m3", tmp_path / "model", layers=1, vocabulary=160_000, dtype=np.float32)
    assert encoder.embeddings.vocabulary * encoder.hidden_size * 4 > FETCH_LIMIT
    with limit_memory(FETCH_LIMIT) as group:
        program = f"{group.enter}\n{PROGRAM}"
        command = [sys.executable, "-c", program, str(tmp_path / "model"), str(tmp_path / "store")]
        subprocess.run(command, check=True, capture_output=True)
        assert group.count_kills() == 0
