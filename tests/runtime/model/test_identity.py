"""Changes to the vector-space identity, and changes that leave it as it is."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from embedserve_runtime.config import ModelSettings
from embedserve_runtime.model.reading import read_card
from tests.support.models import minilm_folder, small_tokenizer, tiny_bert

Edit = Callable[[Path], None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny model in the full sentence-transformers layout, with MiniLM's own small files."""
    target = tmp_path / "model"
    tiny_bert(target)
    small_tokenizer(target)
    for name in ("modules.json", "1_Pooling", "sentence_bert_config.json"):
        source = minilm_folder() / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, target / name)
    return target


def identity(folder: Path, **settings: object) -> str:
    return read_card(folder, "local", ModelSettings.model_validate({"source": "m", **settings})).vector_space


def rename_tensors(folder: Path) -> None:
    file = folder / "model.safetensors"
    save_file(
        {
            f"bert.{name.replace('LayerNorm.weight', 'LayerNorm.gamma')}": t
            for name, t in load_file(file).items()
        },
        file,
    )


def add_unused_tensor(folder: Path) -> None:
    file = folder / "model.safetensors"
    save_file({**load_file(file), "pooler.dense.weight": np.ones((2, 2), np.float32)}, file)


def new_pooling_spelling(folder: Path) -> None:
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"pooling_mode": "mean", "embedding_dimension": 36})
    )


def reformat_tokenizer(folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    content["truncation"], content["padding"] = None, None
    (folder / "tokenizer.json").write_text(json.dumps(content, indent=3, sort_keys=True))


def change_weight(folder: Path) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors["encoder.layer.1.output.dense.bias"][0] += 1
    save_file(tensors, file)


def change_tokenizer(folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    first, second = list(vocabulary)[-2:]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (folder / "tokenizer.json").write_text(json.dumps(content))


def add_dense(folder: Path) -> None:
    module = folder / "3_Dense"
    module.mkdir()
    activation = "torch.nn.modules.linear.Identity"
    sizes = {"in_features": 36, "out_features": 36, "bias": False, "activation_function": activation}
    (module / "config.json").write_text(json.dumps(sizes))
    save_file({"linear.weight": np.eye(36, dtype=np.float32)}, module / "model.safetensors")
    encoder, pooling, normalize = json.loads((folder / "modules.json").read_text())
    dense = {"idx": 2, "name": "2", "path": "3_Dense", "type": "sentence_transformers.models.Dense"}
    (folder / "modules.json").write_text(json.dumps([encoder, pooling, dense, {**normalize, "idx": 3}]))


def add_other_dense(folder: Path) -> None:
    add_dense(folder)
    save_file({"linear.weight": -np.eye(36, dtype=np.float32)}, folder / "3_Dense" / "model.safetensors")


def drop_normalize(folder: Path) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps(modules[:2]))


def nothing(folder: Path) -> None:
    pass


QUERY: dict[str, object] = {"prompts": {"query": "query: "}}
SAME: dict[str, tuple[Edit, dict[str, object]]] = {
    "other tensor names": (rename_tensors, {}),
    "a tensor that is not used": (add_unused_tensor, {}),
    "pooling spelled anew": (new_pooling_spelling, {}),
    "tokenizer formatted anew, without its padding": (reformat_tokenizer, {}),
    "pooling said twice": (nothing, {"pooling": "mean"}),
    "the full dimensions asked for": (nothing, {"dimensions": 36}),
    "shorter inputs": (nothing, {"max_length": 20}),
    "a prompt that is not the default": (nothing, QUERY),
}
OTHER: dict[str, tuple[Edit, dict[str, object]]] = {
    "a weight": (change_weight, {}),
    "the tokenizer": (change_tokenizer, {}),
    "not normalized": (drop_normalize, {}),
    "a dense layer": (add_dense, {}),
    "other weights of a dense layer": (add_other_dense, {}),
    "pooling": (nothing, {"pooling": "cls"}),
    "a cut": (nothing, {"dimensions": 12}),
    "a default prompt": (nothing, {**QUERY, "default_prompt": "query"}),
}


def test_the_identity_is_a_version_and_twenty_hex_digits(folder: Path) -> None:
    assert re.fullmatch(r"vs2-[0-9a-f]{20}", identity(folder))


@pytest.mark.parametrize(("edit", "settings"), SAME.values(), ids=SAME.keys())
def test_another_spelling_of_the_same_model_keeps_the_identity(
    folder: Path, edit: Edit, settings: dict[str, object]
) -> None:
    before = identity(folder)
    edit(folder)
    assert identity(folder, **settings) == before


def test_each_change_of_the_vectors_gives_another_identity(folder: Path, tmp_path: Path) -> None:
    identities = {identity(folder): "unchanged"}
    for name, (edit, settings) in OTHER.items():
        copy = tmp_path / name
        shutil.copytree(folder, copy)
        edit(copy)
        changed = identity(copy, **settings)
        assert changed not in identities, f"{name} has the identity of {identities[changed]}"
        identities[changed] = name
