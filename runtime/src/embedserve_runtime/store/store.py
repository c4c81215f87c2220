"""Models in the store: found by what they were asked for by, added from a staging folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from embedserve_runtime.store.manifest import (
    MANIFEST,
    Manifest,
    Name,
    Reference,
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
    write_whole,
)


@dataclass(frozen=True, slots=True)
class FetchedFile:
    """A file whose content was read and hashed: `stored.path` in the model, `file` in a staging folder or `blobs`."""

    stored: StoredFile
    file: Path


class Store:
    """One root folder. Looking things up writes nothing, so it works on a read-only mount."""

    def __init__(self, root: Path) -> None:
        self.root = root.expanduser()

    def find(self, name: Name) -> Reference | None:
        """What the name stands for, if every file of that model is there with its size."""
        return None if self.find_damage(name) is not None else self._read_reference(name)

    def find_damage(self, name: Name) -> str | None:
        """Why the model of this name cannot be used, in words; None where it can."""
        reference = self._read_reference(name)
        if reference is None:
            return "it is not there"
        manifest = read_manifest(self._get_model_folder(reference.digest))
        if manifest is None:
            return "its manifest is missing"
        return find_damage_by_size(self.get_folder(reference.digest), manifest)

    def get_folder(self, digest: str) -> Path:
        """The folder with the model's files."""
        return self._get_model_folder(digest) / FILES

    def read_manifest(self, digest: str) -> Manifest:
        """Read the manifest of a model. Raises FileNotFoundError where there is no such model."""
        manifest = read_manifest(self._get_model_folder(digest))
        if manifest is None:
            raise FileNotFoundError(self._get_model_folder(digest) / MANIFEST)
        return manifest

    def find_blob(self, sha256: str, size: int | None) -> Path | None:
        """A file that the store has already, read and compared: a damaged one is not used again."""
        path = self.root / "blobs" / sha256
        try:
            good = size in (None, path.stat().st_size) and hash_file(path) == sha256
        except FileNotFoundError:
            return None
        return path if good else None

    def add(
        self, staging: Staging, files: Sequence[FetchedFile], name: Name, commit: str, licence: str | None
    ) -> Reference:
        """Make a model of the files, and point the name at it. Raises VolumeError."""
        ordered = sorted(files, key=lambda file: file.stored.path)
        manifest = Manifest(
            files=tuple(file.stored for file in ordered),
            source=name.source,
            revision=name.revision,
            commit=commit,
            licence=licence,
        )
        reference = Reference(name=name, commit=commit, digest=manifest.digest)
        with volume_errors(self.root):
            building = staging.folder / "building"
            shutil.rmtree(building, ignore_errors=True)
            make_folder(building / FILES)
            for file in ordered:
                self._put(file, building / FILES / file.stored.path)
            move_into_place(staging, building, self._get_model_folder(manifest.digest), manifest, FILES)
            self.point(staging, reference)
        return reference

    def point(self, staging: Staging, reference: Reference) -> None:
        """Have a name stand for a model; the last of several writers is right."""
        path = self.root / "refs" / f"{reference.name.key}.json"
        make_folder(path.parent)
        write_whole(path, reference.model_dump_json(indent=1).encode() + b"\n", staging.make_temporary_path())

    def record_use(self, reference: Reference, vector_space: str | None = None) -> None:
        """Say that a model is wanted now, which keeps `gc` from it for a while, and which identity it has here.

        Only a note: where the store cannot be written it is left out.
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
            write_whole(path, content, path.with_name(f".{MANIFEST}.{os.getpid()}"))
        except OSError:
            return

    def _put(self, arrived: FetchedFile, target: Path) -> None:
        """One file under its blob's name and in the model. Without links it is in the model alone, and only once."""
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

    def _read_reference(self, name: Name) -> Reference | None:
        return read_reference(self.root / "refs" / f"{name.key}.json")

    def _get_model_folder(self, digest: str) -> Path:
        return self.root / "models" / digest
