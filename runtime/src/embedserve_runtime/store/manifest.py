"""Manifests and references of the store, and checks of stored files against them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from pydantic import BaseModel, ConfigDict, ValidationError

MANIFEST = "manifest.json"
CHUNK = 1 << 20


class _Stored(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class StoredFile(_Stored):
    """A stored file: path relative to its folder, size in bytes, SHA-256 in hex."""

    path: str
    size: int
    sha256: str


class Manifest(_Stored):
    """The files of a stored folder, in the order of their paths, and where they came from.

    source, revision, commit: where it was fetched from first. licence: as the source names it. vector_spaces: the
    identities that were found when it was fetched. made_from: digest of the model that an artifact was made from.
    """

    files: tuple[StoredFile, ...]
    source: str | None = None
    revision: str | None = None
    commit: str | None = None
    licence: str | None = None
    vector_spaces: tuple[str, ...] = ()
    made_from: str | None = None

    @property
    def digest(self) -> str:
        """SHA-256 of the list of files; where they came from is not in it."""
        canonical = json.dumps(
            [file.model_dump() for file in self.files], sort_keys=True, separators=(",", ":")
        )
        return hashlib.sha256(canonical.encode()).hexdigest()

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


class ModelName(_Stored):
    """The source and revision that a model is requested by.

    variant: the other settings that decide which files are fetched. refresh: the value of `model.refresh`.
    """

    source: str
    revision: str
    variant: str | None = None
    refresh: str | None = None

    @property
    def key(self) -> str:
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()


class ModelReference(_Stored):
    """A resolved name: the commit that it was resolved to, and the digest of the model in the store."""

    name: ModelName
    commit: str
    digest: str


def read_manifest(folder: Path) -> Manifest | None:
    """Read the manifest of a folder; None where none can be read, since the folder is not whole."""
    try:
        return Manifest.model_validate_json((folder / MANIFEST).read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValidationError):
        return None


def read_reference(path: Path) -> ModelReference | None:
    """Read a reference; None where none can be read."""
    try:
        return ModelReference.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def find_damage_by_size(folder: Path, manifest: Manifest) -> str | None:
    """Describe the first file that is missing or has another size than the manifest says; None where none is."""
    for file in manifest.files:
        try:
            size = (folder / file.path).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return f"{file.path} is missing"
        if size != file.size:
            return f"{file.path} has {size} bytes and should have {file.size}"
    return None


def find_damage_by_hash(folder: Path, manifest: Manifest) -> str | None:
    """Describe the first file whose size or content is not what the manifest says; None where all are."""
    for file in manifest.files:
        if (wrong := find_damage_by_size(folder, manifest.model_copy(update={"files": (file,)}))) is not None:
            return wrong
        digest = hash_file(folder / file.path)
        if digest != file.sha256:
            return f"{file.path} has SHA-256 {digest} and should have {file.sha256}"
    return None


def describe(folder: Path) -> tuple[StoredFile, ...]:
    """Read and hash the files under `folder`, except for a manifest at its top."""
    return tuple(
        StoredFile(path=path, size=(folder / path).stat().st_size, sha256=hash_file(folder / path))
        for path in sorted(_iterate_paths(folder))
        if path != MANIFEST
    )


def hash_file(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _iterate_paths(folder: Path) -> Iterator[str]:
    for parent, _, names in os.walk(folder):
        for name in names:
            yield str(PurePosixPath((Path(parent) / name).relative_to(folder)))
