"""Collects the garbage of a store: lists what is there, decides what nobody needs, then removes it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from embedserve_runtime.store.kernel_cache import KERNELS, KernelArchive, list_kernel_archives
from embedserve_runtime.store.manifest import (
    MANIFEST,
    Manifest,
    ModelReference,
    read_manifest,
    read_reference,
)
from embedserve_runtime.store.publishing import Kind, withdraw
from embedserve_runtime.store.staging import open_staging, remove_abandoned_folders
from embedserve_runtime.store.volume import volume_errors

KINDS: tuple[Kind, ...] = ("models", "artifacts")


@dataclass(frozen=True, slots=True)
class StoreFolder:
    """The folder of a model or an artifact in the store.

    name: of its folder; manifest: None where it is not whole; age_s: since it was wanted.
    """

    kind: Kind
    name: str
    manifest: Manifest | None
    age_s: float


@dataclass(frozen=True, slots=True)
class Blob:
    """A file of `blobs`.

    age_s: since it was written.
    """

    sha256: str
    size: int
    age_s: float


@dataclass(frozen=True, slots=True)
class StoredReference:
    """A file of `refs`.

    age_s: since it was written.
    """

    key: str
    reference: ModelReference
    age_s: float


@dataclass(frozen=True, slots=True)
class StoreContents:
    """The contents of a store."""

    folders: tuple[StoreFolder, ...]
    blobs: tuple[Blob, ...]
    pointers: tuple[StoredReference, ...]
    kernels: tuple[KernelArchive, ...] = ()


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Decides what is in use and stays.

    names: digests, names of artifacts, commits, sources with or without `@revision`. references: whether the references
    of the store count too. younger_than_s: a model that was used or written within that many seconds stays.
    """

    names: Collection[str]
    references: bool
    younger_than_s: float


@dataclass(frozen=True, slots=True)
class Garbage:
    """The entries of a store that can be removed, in the order of removal."""

    pointers: tuple[StoredReference, ...]
    folders: tuple[StoreFolder, ...]
    blobs: tuple[Blob, ...]
    kernels: tuple[KernelArchive, ...] = ()


def find_garbage(contents: StoreContents, policy: RetentionPolicy) -> Garbage:
    """Return what the policy does not keep and is old enough.

    An artifact stays with the model that it was made from; a file stays with each folder that has it. Compiled kernels
    go by their age alone: who wants them again compiles them again.
    """
    recent = policy.younger_than_s
    protected_names = {_strip_algorithm(name) for name in policy.names}
    kept_pointers = [
        pointer
        for pointer in contents.pointers
        if policy.references or pointer.age_s < recent or _is_named(pointer.reference, protected_names)
    ]
    digests = {pointer.reference.digest for pointer in kept_pointers} | protected_names
    kept_digests = {
        folder.name
        for folder in contents.folders
        if folder.kind == "models" and (folder.age_s < recent or folder.name in digests)
    }
    unused_folders = tuple(
        folder for folder in contents.folders if not _is_kept(folder, kept_digests, protected_names, recent)
    )
    needed = {
        file.sha256
        for folder in contents.folders
        if folder not in unused_folders and folder.manifest is not None
        for file in folder.manifest.files
    }
    return Garbage(
        pointers=tuple(
            pointer for pointer in contents.pointers if pointer.reference.digest not in kept_digests
        ),
        folders=unused_folders,
        blobs=tuple(blob for blob in contents.blobs if blob.sha256 not in needed and blob.age_s >= recent),
        kernels=tuple(archive for archive in contents.kernels if archive.age_s >= recent),
    )


def list_contents(root: Path, now: float) -> StoreContents:
    """List the contents of a store. now: seconds since the epoch, from which ages are counted. Raises VolumeError."""
    with volume_errors(root):
        # In the order opposite to that in which a writer makes them: what is pointed at has been listed too.
        pointers = tuple(
            StoredReference(path.stem, reference, now - state.st_mtime)
            for path, state in _list_folder(root / "refs")
            if (reference := read_reference(path)) is not None
        )
        folders = tuple(_iterate_folders(root, now))
        blobs = tuple(
            Blob(path.name, state.st_size, now - state.st_mtime)
            for path, state in _list_folder(root / "blobs")
        )
        return StoreContents(folders, blobs, pointers, tuple(list_kernel_archives(root, now)))


def remove_garbage(root: Path, garbage: Garbage, abandoned_after_s: float) -> None:
    """Remove garbage, and what dead writers left that long ago. Raises VolumeError."""
    with volume_errors(root), open_staging(root, "gc") as staging:
        for pointer in garbage.pointers:
            (root / "refs" / f"{pointer.key}.json").unlink(missing_ok=True)
        for folder in garbage.folders:
            withdraw(staging, root / folder.kind / folder.name)
        for blob in garbage.blobs:
            _unlink_blob(root / "blobs" / blob.sha256)
        for archive in garbage.kernels:
            (root / KERNELS / archive.name).unlink(missing_ok=True)
    with volume_errors(root):
        remove_abandoned_folders(root, abandoned_after_s)


def _unlink_blob(path: Path) -> None:
    """Remove a blob, unless a writer has just linked it to a new model, which gives it a second name."""
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_nlink == 1:
            path.unlink()


def _is_kept(
    folder: StoreFolder, kept_models: Collection[str], protected_names: Collection[str], recent: float
) -> bool:
    if folder.kind == "models":
        return folder.name in kept_models
    made_from = folder.manifest.made_from if folder.manifest is not None else None
    is_of_kept = made_from is not None and _strip_algorithm(made_from) in kept_models
    return folder.age_s < recent or folder.name in protected_names or is_of_kept


def _is_named(reference: ModelReference, protected_names: Collection[str]) -> bool:
    name = reference.name
    return (
        name.source in protected_names
        or f"{name.source}@{name.revision}" in protected_names
        or reference.commit in protected_names
    )


def _iterate_folders(root: Path, now: float) -> Iterator[StoreFolder]:
    for kind in KINDS:
        for path, state in _list_folder(root / kind):
            status = state
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                status = (path / MANIFEST).stat()
            yield StoreFolder(kind, path.name, read_manifest(path), now - status.st_mtime)


def _list_folder(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """List a folder; what another process takes away in this moment is left out."""
    for path in sorted(folder.glob("*")):
        with contextlib.suppress(FileNotFoundError):
            yield path, path.stat()


def _strip_algorithm(name: str) -> str:
    return name.removeprefix("sha256:")
