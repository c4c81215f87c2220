"""Models of no family of ours: exported by torch, equal to it, and served from the store."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from subprocess import CompletedProcess, run
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer, BertModel, ErnieConfig, ErnieModel

from e2e.hub import HubServer
from embedserve_runtime.config import RuntimeConfig, load_config
from embedserve_runtime.conversion.converting import convert
from embedserve_runtime.errors import ConfigError, ModelInvalid, UnsupportedArchitecture
from embedserve_runtime.loading.runners import load_runner
from embedserve_runtime.model.checkpoint import Checkpoint
from tests.runtime.pipelines.folders import TEXTS, bert, embed
from tests.support.models import tiny
from tests.support.tolerances import FP32_MAX_ABS_DIFF

SIZES = {
    "vocab_size": 3_000,
    "embedding_size": 20,
    "hidden_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 3,
    "intermediate_size": 30,
    "max_position_embeddings": 64,
}


@pytest.fixture(scope="module")
def ernie(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = bert(tmp_path_factory.mktemp("ernie"), BertModel)
    tiny(folder, ErnieModel, ErnieConfig(**SIZES))
    return folder


def config_of(source: Path, store: Path, pooling: str = "mean") -> RuntimeConfig:
    return load_config(
        flags={"model": {"source": str(source), "store": store, "pooling": pooling}, "engine": {"threads": 1}}
    )


def of_transformers(folder: Path) -> Any:
    """Means of hidden states, each text alone."""
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    rows = []
    for text in TEXTS:
        feeds = tokenizer(text, truncation=True, max_length=64, return_tensors="pt")
        with torch.no_grad():
            rows.append(model(**feeds).last_hidden_state[0].mean(dim=0).numpy())
    return np.stack(rows)


@pytest.mark.thorough
def test_a_model_of_no_family_is_exported_equals_transformers_and_is_served_from_the_store(
    ernie: Path, tmp_path: Path
) -> None:
    config = config_of(ernie, tmp_path / "store")
    with pytest.raises(UnsupportedArchitecture, match=r"ernie.*`embedserve convert` can export it"):
        load_runner(config)
    result = convert(config)
    (variant,) = result["variants"]
    assert (result["chosen"], variant["published"], variant["minCosine"] > 0.99999) == ("float32", True, True)
    runner = load_runner(config)
    assert runner.card.vector_space == result["vectorSpace"]
    assert np.abs(embed(runner, TEXTS) - of_transformers(ernie)).max() <= FP32_MAX_ABS_DIFF
    repeated = convert(config_of(ernie, tmp_path / "other", pooling="auto"))
    assert (repeated["artifact"], repeated["vectorSpace"]) == (result["artifact"], result["vectorSpace"])
    assert (repeated["guessesPooling"], result["guessesPooling"]) == (True, False)


def test_a_checkpoint_that_lacks_tensors_is_not_filled_with_random_ones(ernie: Path, tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    folder = tmp_path / "model"
    shutil.copytree(ernie, folder)
    checkpoint = Checkpoint.open(folder)
    names = [name for name in sorted(checkpoint.names) if "intermediate" not in name]
    save_file({name: np.array(checkpoint.read_tensor(name)) for name in names}, folder / "model.safetensors")
    with pytest.raises(ModelInvalid, match=r"lacks 2 tensors of ErnieModel: .*intermediate"):
        convert(config_of(folder, tmp_path / "store"))


def test_what_transformers_does_not_know_is_refused_by_name(ernie: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(ernie, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "novel"}))
    with pytest.raises(UnsupportedArchitecture, match=r"transformers does not load .*novel"):
        convert(config_of(folder, tmp_path / "store"))


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (["logits"], r"onnx\.outputs: logits cannot be .* last_hidden_state alone"),
        (["sentence_embedding", "last_hidden_state"], r"onnx\.outputs: sentence_embedding cannot be"),
    ],
    ids=["of another head", "one of two"],
)
def test_an_output_that_the_export_has_not_is_refused_by_name(
    ernie: Path, tmp_path: Path, outputs: list[str], message: str
) -> None:
    plain = config_of(ernie, tmp_path / "store")
    config = plain.model_copy(update={"onnx": plain.onnx.model_copy(update={"outputs": tuple(outputs)})})
    with pytest.raises(ConfigError, match=message):
        convert(config)
    assert not (tmp_path / "store" / "artifacts").exists()


def without_torch(*arguments: str) -> CompletedProcess[str]:
    """The command, as in an image that has no torch."""
    command = "from embedserve_runtime.commands.cli import main; sys.exit(main())"
    program = f"import sys; sys.modules['torch'] = None; {command}"
    return run([sys.executable, "-c", program, *arguments], check=False, capture_output=True, text=True)


@pytest.mark.thorough
def test_one_image_fetches_one_with_torch_exports_and_the_first_serves(
    ernie: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An EmbeddingService's Jobs do it on one volume."""
    shutil.copytree(ernie, tmp_path / "hub" / "acme" / "ernie" / "main")
    monkeypatch.setenv("EMBEDSERVE_MODEL__POOLING", "mean")
    arguments = ("--model", "acme/ernie", "--store", str(tmp_path / "store"))
    with HubServer(tmp_path / "hub") as hub:
        monkeypatch.setenv("EMBEDSERVE_MODEL__ENDPOINT", hub.url)
        refused = without_torch("fetch", *arguments)
        assert refused.returncode == 1
        assert "UnsupportedArchitecture" in refused.stderr
        assert "`embedserve convert` can export it" in refused.stderr
        monkeypatch.setenv("EMBEDSERVE_MODEL__EXPORT_ELSEWHERE", "true")
        fetched = without_torch("fetch", *arguments)
    assert fetched.returncode == 0, fetched.stderr
    assert json.loads(fetched.stdout)["model"]["needsExport"] is True
    monkeypatch.setenv("EMBEDSERVE_MODEL__OFFLINE", "true")
    flags = {"model": {"source": "acme/ernie", "store": tmp_path / "store"}, "engine": {"threads": 1}}
    conversion = convert(load_config(flags=flags))
    assert (conversion["dimensions"], conversion["outputs"]) == (24, ["dense", "hidden"])
    served = without_torch("inspect", "--json", *arguments)
    assert served.returncode == 0, served.stderr
    assert json.loads(served.stdout)["vectorSpace"] == conversion["vectorSpace"]


@pytest.mark.thorough
def test_without_torch_the_command_says_where_it_can_be_done(ernie: Path, tmp_path: Path) -> None:
    completed = without_torch("convert", "--model", str(ernie), "--store", str(tmp_path))
    assert completed.returncode == 1
    assert "UnsupportedArchitecture" in completed.stderr
    assert "where torch and transformers are, as in the CUDA image" in completed.stderr
