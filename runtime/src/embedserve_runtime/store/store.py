"""Looks up models in the store by name, and adds them from a staging folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from embedserve_runtime.store.manifest import (
    MANIFEST,
    Manifest,
    ModelName,
    ModelReference,
    StoredFile,
    find_damage_by_size,
    hash_file,
    read_manifest,
    read_reference,
)
from embedserve_runtime.store.publishing import move_into_place
from embedserve_runtime.store.staging import FILES, Staging
from embedserve_runtime.store.volume import (
    link_or_copy,
    make_folder,
    refuses_links,
    sync,
    volume_errors,
    write_atomically,
)


@dataclass(frozen=True, slots=True)
class FetchedFile:
    """A file whose content was read and hashed: `stored.path` in the model, `file` in a staging folder or `blobs`."""

    stored: StoredFile
    file: Path


class Store:
    """A store of models in one root folder. Lookups write nothing, so they work on a read-only mount."""

    def __init__(self, root: Path) -> None:
        self.root = root.expanduser()

    def find(self, name: ModelName) -> ModelReference | None:
        """Look up a name; None unless every file of its model is there with its size."""
        return None if self.find_damage(name) is not None else self._read_reference(name)

    def find_damage(self, name: ModelName) -> str | None:
        """Describe why the model of this name cannot be used; None if it can."""
        reference = self._read_reference(name)
        if reference is None:
            return "it is not there"
        manifest = read_manifest(self._get_model_folder(reference.digest))
        if manifest is None:
            return "its manifest is missing"
        return find_damage_by_size(self.get_folder(reference.digest), manifest)

    def get_folder(self, digest: str) -> Path:
        """Return the folder with the model's files."""
        return self._get_model_folder(digest) / FILES

    def read_manifest(self, digest: str) -> Manifest:
        """Read the manifest of a model. Raises FileNotFoundError where there is no such model."""
        manifest = read_manifest(self._get_model_folder(digest))
        if manifest is None:
            raise FileNotFoundError(self._get_model_folder(digest) / MANIFEST)
        return manifest

    def find_blob(self, sha256: str, size: int | None) -> Path | None:
        """Find a file that the store has already, verified by its hash; a damaged one is not found."""
        path = self.root / "blobs" / sha256
        try:
            good = size in (None, path.stat().st_size) and hash_file(path) == sha256
        except FileNotFoundError:
            return None
        return path if good else None

    def add(
        self,
        staging: Staging,
        files: Sequence[FetchedFile],
        name: ModelName,
        commit: str,
        licence: str | None,
    ) -> ModelReference:
        """Add a model made of the files, and make the name refer to it. Raises VolumeError."""
        ordered = sorted(files, key=lambda file: file.stored.path)
        manifest = Manifest(
            files=tuple(file.stored for file in ordered),
            source=name.source,
            revision=name.revision,
            commit=commit,
            licence=licence,
        )
        reference = ModelReference(name=name, commit=commit, digest=manifest.digest)
        with volume_errors(self.root):
            building = staging.folder / "building"
            shutil.rmtree(building, ignore_errors=True)
            make_folder(building / FILES)
            for file in ordered:
                self._put(file, building / FILES / file.stored.path)
            move_into_place(staging, building, self._get_model_folder(manifest.digest), manifest, FILES)
            self.write_reference(staging, reference)
        return reference

    def write_reference(self, staging: Staging, reference: ModelReference) -> None:
        """Make a name refer to a model, atomically; of several writers the last one wins."""
        path = self.root / "refs" / f"{reference.name.key}.json"
        make_folder(path.parent)
        write_atomically(
            path, reference.model_dump_json(indent=1).encode() + b"\n", staging.make_temporary_path()
        )

    def record_use(self, reference: ModelReference, vector_space: str | None = None) -> None:
        """Record that a model is used now, which protects it from garbage collection for a while, and its vector space.

        Where the store cannot be written, nothing is recorded.
        """
        try:
            os.utime(self.root / "refs" / f"{reference.name.key}.json")
            os.utime(self._get_model_folder(reference.digest) / MANIFEST)
            manifest = self.read_manifest(reference.digest)
            if vector_space is None or vector_space in manifest.vector_spaces:
                return
            noted = manifest.model_copy(update={"vector_spaces": (*manifest.vector_spaces, vector_space)})
            path = self._get_model_folder(reference.digest) / MANIFEST
            content = noted.model_dump_json(indent=1).encode() + b"\n"
            write_atomically(path, content, path.with_name(f".{MANIFEST}.{os.getpid()}"))
        except OSError:
            return

    def _put(self, arrived: FetchedFile, target: Path) -> None:
        """Link a file as a blob and into the model. On volumes without links it is only moved into the model."""
        make_folder(target.parent)
        sha256 = arrived.stored.sha256
        blob = self.root / "blobs" / sha256
        make_folder(blob.parent)
        if arrived.file == blob or self.find_blob(sha256, arrived.stored.size) is not None:
            link_or_copy(blob, target)
            return
        sync(arrived.file)
        arrived.file.chmod(0o444)
        try:
            os.link(arrived.file, target)
        except OSError as error:
            if not refuses_links(error):
                raise
            arrived.file.replace(target)
        else:
            arrived.file.replace(blob)

    def _read_reference(self, name: ModelName) -> ModelReference | None:
        return read_reference(self.root / "refs" / f"{name.key}.json")

    def _get_model_folder(self, digest: str) -> Path:
        return self.root / "models" / digest
