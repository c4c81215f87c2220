"""Files of torch.save: tensors are read, and nothing else is."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embedserve_runtime.errors import ModelFileMissing, ModelInvalid
from embedserve_runtime.model import torch_files
from embedserve_runtime.model.torch_files import TorchFile

LAYER = torch.nn.Linear(5, 3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_tensors_are_read_as_torch_saved_them(tmp_path: Path, dtype: torch.dtype) -> None:
    state = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.LayerNorm(3)).to(dtype).state_dict()
    torch.save(state, tmp_path / "a.pt")
    file = TorchFile(tmp_path / "a.pt")
    assert file.names == set(state)
    for name, tensor in state.items():
        assert file.read_tensor(name).dtype.name == str(dtype).removeprefix("torch.")
        np.testing.assert_array_equal(file.read_tensor(name).astype(np.float64), tensor.double().numpy())


@pytest.mark.parametrize(
    "state",
    [
        pytest.param(dict(LAYER.named_parameters()), id="parameters"),
        pytest.param(dict(LAYER.state_dict()), id="a plain dictionary"),
        pytest.param(OrderedDict(LAYER.state_dict()), id="an ordered dictionary"),
        pytest.param({"weight": LAYER.weight[1:].detach()}, id="a part of a larger tensor"),
    ],
)
def test_every_dictionary_of_tensors_is_read(tmp_path: Path, state: dict[str, torch.Tensor]) -> None:
    torch.save(state, tmp_path / "a.pt")
    file = TorchFile(tmp_path / "a.pt")
    assert file.names == set(state)
    for name, tensor in state.items():
        np.testing.assert_array_equal(file.read_tensor(name), tensor.detach().numpy())


class Attack:
    """Unpickled, this would run a command."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("exit 1",)


def archive(path: Path, content: bytes, compression: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", compression) as target:
        target.writestr("archive/data.pkl", content)


def no_archive(path: Path) -> None:
    path.write_bytes(pickle.dumps({}))


def saved(value: Any) -> Callable[[Path], None]:
    return lambda path: torch.save(value, path)


def edited(old: bytes, new: bytes) -> Callable[[Path], None]:
    """A file of torch.save with other bytes in its pickle."""

    def write(path: Path) -> None:
        torch.save(LAYER.state_dict(), path)
        with zipfile.ZipFile(path) as source:
            entries = {name: source.read(name) for name in source.namelist()}
        with zipfile.ZipFile(path, "w") as target:
            for name, content in entries.items():
                target.writestr(name, content.replace(old, new) if name.endswith("data.pkl") else content)

    return write


REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "code": (saved({"weight": Attack()}), "its pickle names posix.system"),
    "code in an old pickle": (
        lambda path: archive(path, pickle.dumps(Attack(), protocol=2)),
        "its pickle names posix.system",
    ),
    "a newer pickle": (
        lambda path: archive(path, pickle.dumps({"a": 1}, protocol=4)),
        "its pickle has the instruction FRAME",
    ),
    "a whole module": (saved(LAYER), "its pickle names torch.nn.modules.linear.Linear"),
    "nested dictionaries": (saved({"model": LAYER.state_dict()}), "something else than a dictionary"),
    "a list": (saved([LAYER.weight]), "its pickle has the instruction EMPTY_LIST"),
    "a number": (saved({"weight": 3}), "something else than a dictionary of tensors"),
    "whole numbers": (saved({"weight": torch.ones(2, dtype=torch.int64)}), "names torch.LongStorage"),
    "a transposed tensor": (saved({"weight": LAYER.weight.T}), "not laid out row by row"),
    "a pickle cut short": (lambda path: archive(path, b"\x80\x02}q"), "is not read"),
    "a memory that is empty": (lambda path: archive(path, b"\x80\x02h\x07."), "damaged at BINGET"),
    "an empty stack": (lambda path: archive(path, b"\x80\x02R."), "damaged at REDUCE"),
    "a size that is not there": (edited(b"K\x0f", b"K\xff"), "has 60 bytes, expected 1020"),
    "a packed entry": (
        lambda path: archive(path, b"\x80\x02}.", zipfile.ZIP_DEFLATED),
        "data.pkl is compressed",
    ),
    "no archive": (no_archive, "not a zip file"),
    "an archive of something else": (
        lambda path: zipfile.ZipFile(path, "w").writestr("a", b""),
        "not a zip archive with one",
    ),
}


@pytest.mark.parametrize(("write", "want_message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_a_dictionary_of_tensors_is_refused_with_what_it_is(
    tmp_path: Path, write: Callable[[Path], None], want_message: str
) -> None:
    write(tmp_path / "a.pt")
    with pytest.raises(ModelInvalid, match=want_message):
        TorchFile(tmp_path / "a.pt")


def test_sizes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save(LAYER.state_dict(), tmp_path / "a.pt")
    monkeypatch.setattr(torch_files, "MAX_PICKLE_BYTES", 20)
    with pytest.raises(ModelInvalid, match=r"data\.pkl has more than 20 bytes"):
        TorchFile(tmp_path / "a.pt")
    monkeypatch.setattr(torch_files, "MAX_FILE_BYTES", 50)
    with pytest.raises(ModelInvalid, match="it has more than 50 bytes"):
        TorchFile(tmp_path / "a.pt")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileMissing, match=r"a\.pt not found in"):
        TorchFile(tmp_path / "a.pt")
