from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from embedserve_runtime.config import ModelSettings
from embedserve_runtime.errors import (
    ConfigError,
    EmbedserveError,
    ModelFileMissing,
    ModelInvalid,
    UnsupportedArchitecture,
)
from embedserve_runtime.model.activations import Activation
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.files import MAX_FILE_BYTES
from embedserve_runtime.model.pipeline import DenseLayer, Pooling
from embedserve_runtime.model.reading import read_card
from tests.support.models import small_minilm


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return small_minilm(tmp_path / "model")


def card_of(folder: Path, **settings: object) -> ModelCard:
    return read_card(folder, "local", ModelSettings.model_validate({"source": str(folder), **settings}))


def edit(path: Path, /, **changes: object) -> None:
    """Change keys of a JSON object in a file; None removes one."""
    content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    content.update(changes)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def add_module(folder: Path, kind: str, path: str) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    modules.insert(2, {"idx": 2, "name": path, "path": path, "type": f"sentence_transformers.models.{kind}"})
    modules[3]["idx"] = 3
    (folder / "modules.json").write_text(json.dumps(modules))


def test_the_card_of_minilm(minilm: Path) -> None:
    card = card_of(minilm)
    assert (card.encoder.family, len(card.encoder.layers), card.encoder.hidden_size) == ("bert", 6, 384)
    assert (card.pipeline.pooling, card.pipeline.normalize, card.pipeline.dense) == (
        (Pooling.MEAN,),
        True,
        (),
    )
    assert (card.pipeline.dimensions, card.max_length, card.prompts, card.default_prompt) == (
        384,
        256,
        {},
        None,
    )


@pytest.mark.parametrize(
    ("settings", "want"),
    [
        ({"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}, (Pooling.CLS,)),
        ({"pooling_mode_mean_tokens": False, "pooling_mode_max_tokens": True}, (Pooling.MAX,)),
        ({"pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True}, (Pooling.LAST,)),
        ({"pooling_mode": "cls"}, (Pooling.CLS,)),
        ({"pooling_mode": ["mean", "cls"]}, (Pooling.MEAN, Pooling.CLS)),
        ({"pooling_mode_cls_token": True}, (Pooling.CLS, Pooling.MEAN)),
        ({"pooling_mode": ["mean"]}, (Pooling.MEAN,)),
    ],
)
def test_pooling_is_read_in_the_old_and_the_new_spelling(
    folder: Path, settings: dict[str, object], want: tuple[Pooling, ...]
) -> None:
    edit(folder / "1_Pooling" / "config.json", **settings)
    assert card_of(folder).pipeline.pooling == want


def test_settings_of_the_service_are_laid_over_those_of_the_folder(folder: Path) -> None:
    edit(
        folder / "config_sentence_transformers.json",
        prompts={"query": "q: ", "doc": "d: "},
        default_prompt_name="doc",
    )
    card = card_of(
        folder,
        pooling="max",
        dimensions=64,
        max_length=128,
        prompts={"query": "ask: "},
        default_prompt="query",
    )
    assert (card.pipeline.pooling, card.pipeline.dimensions, card.pipeline.full_dimensions) == (
        (Pooling.MAX,),
        64,
        384,
    )
    assert (card.max_length, card.default_prompt) == (128, "query")
    assert card.prompts == {"query": "ask: ", "doc": "d: "}


def test_dense_modules_are_read_with_their_activation(folder: Path) -> None:
    add_module(folder, "Dense", "2_Dense")
    edit(
        folder / "2_Dense" / "config.json",
        in_features=384,
        out_features=128,
        activation_function="torch.nn.modules.activation.Tanh",
    )
    save_file(
        {"linear.weight": np.ones((128, 384), np.float32), "linear.bias": np.ones(128, np.float32)},
        folder / "2_Dense" / "model.safetensors",
    )
    pipeline = card_of(folder).pipeline
    assert pipeline.dense == (DenseLayer("2_Dense", 384, 128, True, Activation.TANH),)
    assert pipeline.dimensions == 128


def test_a_folder_without_modules_is_pooled_by_mean_and_not_normalised_as_sentence_transformers_does(
    folder: Path,
) -> None:
    (folder / "modules.json").unlink()
    pipeline = card_of(folder).pipeline
    assert (pipeline.pooling, pipeline.normalize) == ((Pooling.MEAN,), False)


def remove(name: str) -> Any:
    return lambda folder: (folder / name).unlink()


def write(name: str, text: str) -> Any:
    return lambda folder: (folder / name).write_text(text)


def change(name: str, **changes: object) -> Any:
    return lambda folder: edit(folder / name, **changes)


def drop_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    del tensors["encoder.layer.0.output.dense.bias"]
    save_file(tensors, folder / "model.safetensors")


def pickle_only(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"")


def weights_by_pointer(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").write_text(LFS_POINTER)


def graph_only(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").write_bytes(b"")


def truncated_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").write_bytes(b"\x10")


LFS_POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 90868376\n"

BROKEN: dict[str, tuple[Any, type[EmbedserveError], str]] = {
    "no tokenizer": (remove("tokenizer.json"), ModelFileMissing, "tokenizer.json not found in .*model"),
    "no config": (remove("config.json"), ModelFileMissing, "config.json not found"),
    "config is no JSON": (write("config.json", "{"), ModelInvalid, "config.json is not valid JSON"),
    "config lacks a key": (
        change("config.json", hidden_size=None),
        ModelInvalid,
        "config.json: hidden_size: Field",
    ),
    "unknown family": (
        change("config.json", model_type="mamba", architectures=["MambaModel"]),
        UnsupportedArchitecture,
        "model_type 'mamba' .architectures: MambaModel. is not supported; supported: albert",
    ),
    "relative positions": (
        change("config.json", position_embedding_type="relative_key"),
        UnsupportedArchitecture,
        "position_embedding_type = 'relative_key'",
    ),
    "an unknown pooling": (
        change("1_Pooling/config.json", pooling_mode=["mean", "median"]),
        UnsupportedArchitecture,
        r"1_Pooling/config.json: pooling mean \+ median is not supported",
    ),
    "unknown module": (
        lambda folder: add_module(folder, "LSTM", "2_LSTM"),
        UnsupportedArchitecture,
        "module sentence_transformers.models.LSTM is not supported",
    ),
    "a tensor is missing": (
        drop_tensor,
        ModelInvalid,
        "lacks 1 tensors of a bert encoder: encoder.layer.0.output",
    ),
    "only a broken pickle": (
        pickle_only,
        ModelInvalid,
        "pytorch_model.bin is not a pickle of tensors",
    ),
    "weights that Git LFS has elsewhere": (
        weights_by_pointer,
        ModelInvalid,
        "model.safetensors is a pointer of Git LFS instead of the file; fetch it with `git lfs pull`",
    ),
    "a tokenizer that Git LFS has elsewhere": (
        write("tokenizer.json", LFS_POINTER),
        ModelInvalid,
        "tokenizer.json is a pointer of Git LFS",
    ),
    "only an ONNX file": (
        graph_only,
        ModelFileMissing,
        r"no weights in .*; to run an ONNX file, set model.onnx_file \(--onnx-file\) to onnx/model.onnx",
    ),
    "damaged weights": (
        truncated_weights,
        ModelInvalid,
        "model.safetensors is not a readable safetensors file",
    ),
}


@pytest.mark.parametrize(("damage", "want_error", "want_message"), BROKEN.values(), ids=BROKEN.keys())
def test_a_folder_that_cannot_be_served_is_refused_with_the_file_and_the_cause(
    folder: Path, damage: Any, want_error: type[EmbedserveError], want_message: str
) -> None:
    damage(folder)
    with pytest.raises(want_error, match=want_message):
        card_of(folder)


@pytest.mark.parametrize(
    ("settings", "want_message"),
    [
        ({"dimensions": 385}, "model.dimensions: 385 is more than the model's 384"),
        ({"max_length": 513}, "model.max_length: 513 is more than the model's 512 positions"),
        (
            {"default_prompt": "query"},
            "model.default_prompt: 'query' is not a prompt of the model; known: none",
        ),
        (
            {"outputs": ["dense", "sparse"]},
            "model.outputs: sparse not available from .*, which gives dense, hidden",
        ),
    ],
)
def test_a_setting_that_the_model_cannot_meet_is_refused_by_name(
    folder: Path, settings: dict[str, object], want_message: str
) -> None:
    with pytest.raises(ConfigError, match=want_message):
        card_of(folder, **settings)


def test_a_message_names_the_repository_and_not_the_folder_of_the_store(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelInvalid) as caught:
        card_of(folder, source="lab/public")
    assert caught.value.message.startswith("lab/public/config.json is not valid JSON")


def test_a_file_that_cannot_be_opened_is_named_once_it_is_needed(folder: Path) -> None:
    before = card_of(folder).vector_space
    (folder / "special_tokens_map.json").mkdir()  # of an encoder's dense vectors nothing depends on it
    assert card_of(folder).vector_space == before
    (folder / "config_sentence_transformers.json").mkdir()
    with pytest.raises(
        ModelInvalid, match=r"config_sentence_transformers\.json cannot be read: Is a directory"
    ):
        card_of(folder)


def test_a_file_that_is_far_too_large_is_not_read(folder: Path) -> None:
    os.truncate(folder / "tokenizer.json", MAX_FILE_BYTES + 1)
    with pytest.raises(ModelInvalid, match=rf"tokenizer\.json has more than {MAX_FILE_BYTES} bytes"):
        card_of(folder)
