"""Compiled kernels in the store: found whole by the next process, or not at all."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from embedserve_runtime.store.garbage_collector import (
    RetentionPolicy,
    find_garbage,
    list_contents,
    remove_garbage,
)
from embedserve_runtime.store.kernel_cache import KERNELS, KernelCache

FILES = {"ab/kernel.cubin": b"machine code", "ab/__grp__kernel.json": b"{}", "cd/launcher.so": b"more"}


@pytest.fixture
def first(tmp_path: Path) -> KernelCache:
    """A process that has compiled."""
    compiled = KernelCache(tmp_path / "store", "0f" * 16, tmp_path / "first")
    for name, content in FILES.items():
        path = compiled.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return compiled


def next_one(first: KernelCache, key: str | None = None) -> KernelCache:
    folder = first.folder.parent / "next"
    folder.mkdir()
    return KernelCache(first.root, key or first.key, folder)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_one_process_compiled_the_next_one_of_its_kind_has(first: KernelCache) -> None:
    assert first.save() is not None
    following = next_one(first)
    assert following.restore() == len(FILES)
    assert contents(following.folder) == FILES


def test_another_kind_has_nothing_of_it(first: KernelCache) -> None:
    first.save()
    assert next_one(first, "1e" * 16).restore() == 0


def test_what_is_kept_again_takes_the_place_of_what_was(first: KernelCache) -> None:
    earlier = first.save()
    (first.folder / "ab" / "second.cubin").write_bytes(b"of a longer text")
    later = first.save()
    assert list((first.root / KERNELS).iterdir()) == [later] != [earlier]
    assert next_one(first).restore() == len(FILES) + 1


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 half of it", None], ids=["empty", "other bytes", "cut"])
def test_an_archive_that_is_not_what_its_name_says_is_not_unpacked(
    first: KernelCache, damage: bytes | None
) -> None:
    archive = first.save()
    assert archive is not None
    archive.write_bytes(archive.read_bytes()[:-1] if damage is None else damage)
    following = next_one(first)
    assert following.restore() == 0
    assert contents(following.folder) == {}


def test_a_store_that_cannot_be_written_to_is_read_and_left_alone(first: KernelCache, tmp_path: Path) -> None:
    first.save()
    before = contents(first.root)
    # A file where the folder should be stands for a mount that takes nothing: the tests may run as root.
    full = tmp_path / "no-folder"
    full.write_bytes(b"")
    assert KernelCache(full, first.key, first.folder).save() is None
    assert contents(first.root) == before


def test_clean_up_removes_what_no_pod_has_taken_for_long(first: KernelCache) -> None:
    archive = first.save()
    assert archive is not None
    modified_at = archive.stat().st_mtime
    policy = RetentionPolicy((), references=True, younger_than_s=3600.0)
    assert find_garbage(list_contents(first.root, modified_at + 3599.0), policy).kernels == ()
    garbage = find_garbage(list_contents(first.root, modified_at + 3600.0), policy)
    remove_garbage(first.root, garbage, 3600.0)
    assert [kernel.name for kernel in garbage.kernels] == [archive.name]
    assert not archive.exists()


def test_taking_an_archive_makes_it_young_again(first: KernelCache) -> None:
    archive = first.save()
    assert archive is not None
    os.utime(archive, (1.0, 1.0))
    shutil.rmtree(first.folder)
    next_one(first).restore()
    assert archive.stat().st_mtime > 1.0
