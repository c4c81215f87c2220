"""Weights as torch pickles: read where torch is, by torch's own safe reader; refused with advice elsewhere."""

from __future__ import annotations

import os
import pickle
from importlib import util
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from e2e.hub import HubServer
from embedserve_runtime.config import ModelSettings
from embedserve_runtime.errors import ModelFileMissing, ModelInvalid
from embedserve_runtime.model import pickles
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.checkpoint import Checkpoint
from embedserve_runtime.model.reading import read_card
from embedserve_runtime.sources import fetch_model
from tests.support.models import copy_of_minilm, small_minilm


def card_of(folder: Path) -> ModelCard:
    return read_card(folder, "local", ModelSettings(source=str(folder)))


@pytest.fixture(params=["zip", "old format"])
def pickled(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """MiniLM as it was saved before safetensors."""
    folder = copy_of_minilm(tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin", _use_new_zipfile_serialization=request.param == "zip")
    return folder


def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickles, "find_spec", lambda name: None if name == "torch" else util.find_spec(name))


def test_a_pickle_is_the_same_model(pickled: Path, minilm: Path) -> None:
    assert card_of(pickled).vector_space == card_of(minilm).vector_space == "vs1-0978181612db7ef023ab"


def test_without_torch_a_pickle_is_refused_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = small_minilm(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    torch.save({"a": torch.zeros(1)}, folder / "pytorch_model.bin")
    without_torch(monkeypatch)
    with pytest.raises(
        ModelFileMissing, match=r"pytorch_model.bin: a pickle is read only where torch .* safetensors"
    ):
        card_of(folder)


def test_bfloat16_survives(tmp_path: Path) -> None:
    values = torch.tensor([1.0, -2.5, 3e38], dtype=torch.bfloat16)
    torch.save({"values": values}, tmp_path / "pytorch_model.bin")
    got = Checkpoint.open(tmp_path).read_float32("values")
    np.testing.assert_array_equal(got, values.float().numpy())


class _Malicious:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("made-by-a-pickle",)


def test_code_in_a_pickle_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps({"weights": _Malicious()}))
    with pytest.raises(ModelInvalid, match="not a pickle of tensors that torch reads"):
        Checkpoint.open(tmp_path)
    assert not (tmp_path / "made-by-a-pickle").exists()


def test_a_pickle_is_fetched_only_where_it_is_needed_and_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = small_minilm(tmp_path / "repositories" / "lab" / "old" / "main")
    (repository / "model.safetensors").unlink()
    torch.save({"a": torch.zeros(1)}, repository / "pytorch_model.bin")
    with HubServer(tmp_path / "repositories") as hub:
        settings = ModelSettings(source="lab/old", endpoint=hub.url, store=tmp_path / "store")
        with monkeypatch.context() as patch:
            without_torch(patch)
            with pytest.raises(ModelFileMissing, match="no safetensors for it: a pickle is read only"):
                fetch_model(settings)
        assert (fetch_model(settings).folder / "pytorch_model.bin").exists()
