"""The compiler's folder around a load: filled from the store, and kept there where it can be."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from embedserve_runtime.engines.torch.compiled import FOLDER, use_kernel_cache
from embedserve_runtime.store.kernel_cache import KernelCache
from tests.support.mounts import bound_to, remount


def load(store: Path, folder: Path, *compiles: str) -> list[str]:
    """One process's start: what was in the compiler's folder when its work began. compiles: what it adds."""
    folder.mkdir()
    with use_kernel_cache(KernelCache(store, "0f" * 16, folder)):
        used = Path(os.environ[FOLDER])
        file_names = sorted(path.name for path in used.iterdir())
        for name in compiles:
            (used / name).write_bytes(name.encode())
    return file_names


@pytest.fixture(autouse=True)
def _variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, "")


def test_a_second_start_finds_what_the_first_one_compiled_and_keeps_only_what_is_new(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert load(tmp_path, tmp_path / "first", "a.cubin", "b.cubin") == []
    assert "kept in the store" in caplog.text
    caplog.clear()
    assert load(tmp_path, tmp_path / "second") == ["a.cubin", "b.cubin"]
    assert "kept in the store" not in caplog.text
    assert load(tmp_path, tmp_path / "third", "c.cubin") == ["a.cubin", "b.cubin"]
    assert load(tmp_path, tmp_path / "fourth") == ["a.cubin", "b.cubin", "c.cubin"]


def test_a_read_only_store_is_read_and_new_kernels_stay_in_the_process_s_own_folder(
    tmp_path: Path, small_volume: Path, caplog: pytest.LogCaptureFixture
) -> None:
    load(small_volume, tmp_path / "first", "a.cubin")
    remount(small_volume, "ro")
    assert load(small_volume, tmp_path / "second", "b.cubin") == ["a.cubin"]
    assert sorted(path.name for path in (tmp_path / "second").iterdir()) == ["a.cubin", "b.cubin"]
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert (
        warning.getMessage()
        == "compiled kernels cannot be kept in the store, the next process compiles them again"
    )
    assert vars(warning)["files"] == 1
    assert load(small_volume, tmp_path / "third") == ["a.cubin"]


def test_a_store_whose_kernels_alone_can_be_written_keeps_them(tmp_path: Path, small_volume: Path) -> None:
    """The operator mounts it so for servers: all for reading, and this folder once more for writing."""
    kernels, outside = small_volume / "kernels", tmp_path / "kernels"
    kernels.mkdir()
    outside.mkdir()
    remount(small_volume, "ro")
    with bound_to(kernels, outside):
        load(small_volume, tmp_path / "first", "a.cubin")
        assert load(small_volume, tmp_path / "second") == ["a.cubin"]
