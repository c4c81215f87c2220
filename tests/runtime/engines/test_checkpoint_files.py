"""Weights as repositories store them: every prefix of every family, one file or several, 16 or 32 bit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from embedserve_runtime.model import families
from embedserve_runtime.model.checkpoint import Checkpoint, Weights
from embedserve_runtime.model.folder import read_folder
from tests.runtime.engines.case import Case
from tests.runtime.engines.cases import CASES

# One case a way to name tensors.
STORED = (
    "bert, odd",
    "roberta",
    "xlm-roberta",
    "camembert",
    "distilbert, odd",
    "mpnet, odd",
    "modernbert, all biases",
    "gte, odd",
    "nomic, odd",
    "nomic v2, two",
    "jina, three",
    "jina code, three",
    "deberta, wide",
    "qwen2, causal",
    "qwen3, biases",
    "mistral, window",
    "llama, biases",
    "gemma2, causal",
    "gemma3, causal",
)
STORED_CASES = [next(case for case in CASES if case.name.startswith(name)) for name in STORED]
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
FILE = "model.safetensors"


def in_shards(folder: Path, tensors: dict[str, Tensor], shards: int) -> None:
    """Tensors dealt out in turn, with an index as transformers writes it; one shard is the plain file."""
    (folder / FILE).unlink(missing_ok=True)
    if shards == 1:
        save_file(tensors, folder / FILE)
        return
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = dict(list(tensors.items())[shard::shards])
        save_file(part, folder / name)
        weight_map |= dict.fromkeys(part, name)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / f"{FILE}.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("case", STORED_CASES, ids=lambda case: case.name)
def test_every_prefix_in_one_file_or_several_in_every_dtype_gives_the_same_parameters(
    tmp_path: Path, case: Case
) -> None:
    case.build(tmp_path)
    encoder = families.describe(read_folder(tmp_path))
    tensors = load_file(tmp_path / FILE)
    expected = Weights(encoder, Checkpoint.open(tmp_path))
    want = {
        parameter.name: torch.from_numpy(expected.read_float32(parameter.name))
        for parameter in encoder.parameters()
    }
    prefixes = encoder.parameter_names.prefixes
    assert len(prefixes) >= 2
    for number, prefix in enumerate(prefixes):
        dtype, shards = DTYPES[number % len(DTYPES)], 1 + 2 * (number % 2)
        # A head's own tensors lie beside the encoder's without its prefix.
        unused = {"classifier.weight": torch.zeros(2, 2)}
        stored = {prefix + name: tensor.to(dtype) for name, tensor in tensors.items()} | unused
        in_shards(tmp_path, stored, shards)
        weights = Weights(encoder, Checkpoint.open(tmp_path))
        for name, tensor in want.items():
            np.testing.assert_array_equal(
                weights.read_float32(name), tensor.to(dtype).float().numpy(), err_msg=name
            )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("prefix", ["", "bert.", "roberta.", "model."])
def test_prefix_shards_and_dtype_do_not_depend_on_each_other(
    tmp_path: Path, prefix: str, shards: int, dtype: torch.dtype
) -> None:
    STORED_CASES[0].build(tmp_path)
    encoder = families.describe(read_folder(tmp_path))
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(tmp_path / FILE).items()}
    in_shards(tmp_path, {prefix + name: tensor for name, tensor in tensors.items()}, shards)
    weights = Weights(encoder, Checkpoint.open(tmp_path))
    word_embeddings = tensors["embeddings.word_embeddings.weight"].float().numpy()
    np.testing.assert_array_equal(weights.read_float32("embeddings.word.weight"), word_embeddings)
    assert [weights.read_tensor(name).shape for name in weights.names] == [
        weights.shape(name) for name in weights.names
    ]
