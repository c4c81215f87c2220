"""The content-addressed model store: one folder that holds models by the digest of what is in them.

    blobs/<sha256>              every file once, read-only
    models/<digest>/...         one model: hard links into blobs under the files' own names
    manifests/<digest>.json     what that model is made of; digest = SHA-256 of its list of files
    refs/<sha256 of the name>.json   source and revision as asked for -> commit and digest
    staging/<sha256 of the name>/    a download under way; kept after a failure so that the next try resumes
    lock                        one writer at a time, whatever the number of processes

Everything is written under a temporary name and renamed, so a reader never sees half a file, and a manifest is
written last, so a model that is listed is whole.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from embedserve_runtime.errors import ConfigError

CHUNK = 1 << 20


class _Stored(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StoredFile(_Stored):
    """One file of a model: path relative to its folder, size in bytes, SHA-256 in hex."""

    path: str
    size: int
    sha256: str


class Manifest(_Stored):
    """What a model is made of; files are in the order of their paths."""

    files: tuple[StoredFile, ...]

    @property
    def digest(self) -> str:
        canonical = json.dumps(
            [file.model_dump() for file in self.files], sort_keys=True, separators=(",", ":")
        )
        return hashlib.sha256(canonical.encode()).hexdigest()

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


class Reference(_Stored):
    """What a name stood for when it was fetched last."""

    source: str
    revision: str
    commit: str
    digest: str


class Store:
    """Adds and finds models under one root folder."""

    def __init__(self, root: Path) -> None:
        """Create the folders. Raises ConfigError when the root cannot be written."""
        self._root = root.expanduser()
        try:
            for folder in ("blobs", "models", "manifests", "refs", "staging"):
                (self._root / folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"model.store: {self._root} cannot be written: {error.strerror}") from error

    def find(self, source: str, revision: str) -> Reference | None:
        """The reference for this name, if its model is here."""
        path = self._reference_path(source, revision)
        if not path.exists():
            return None
        reference = Reference.model_validate_json(path.read_bytes())
        return reference if self._manifest_path(reference.digest).exists() else None

    def folder(self, digest: str) -> Path:
        return self._root / "models" / digest

    def manifest(self, digest: str) -> Manifest:
        return Manifest.model_validate_json(self._manifest_path(digest).read_bytes())

    def staging(self, source: str, revision: str) -> Path:
        """A folder for this download, the same at each try."""
        folder = self._root / "staging" / _name_digest(source, revision)
        folder.mkdir(exist_ok=True)
        return folder

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the store for writing; waits for another writer, whose end also releases the lock."""
        with (self._root / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def add(self, downloaded: Path, paths: list[str], source: str, revision: str, commit: str) -> Reference:
        """Move the named files of `downloaded` into the store and point the name at them. Call under `locked`."""
        manifest = Manifest(files=tuple(self._ingest(downloaded, path) for path in sorted(paths)))
        self._link(manifest)
        reference = Reference(source=source, revision=revision, commit=commit, digest=manifest.digest)
        self._write(self._manifest_path(manifest.digest), manifest)
        self._write(self._reference_path(source, revision), reference)
        shutil.rmtree(downloaded)
        return reference

    def remove(self, reference: Reference) -> None:
        """Forget a model and its files' contents, so that the next fetch brings them anew. Call under `locked`."""
        manifest = self.manifest(reference.digest)
        self._reference_path(reference.source, reference.revision).unlink()
        self._manifest_path(reference.digest).unlink()
        shutil.rmtree(self.folder(reference.digest))
        for file in manifest.files:
            (self._root / "blobs" / file.sha256).unlink()

    def _ingest(self, folder: Path, path: str) -> StoredFile:
        file = folder / path
        digest = hashlib.sha256()
        with file.open("rb") as content:
            while chunk := content.read(CHUNK):
                digest.update(chunk)
        stored = StoredFile(path=path, size=file.stat().st_size, sha256=digest.hexdigest())
        blob = self._root / "blobs" / stored.sha256
        if blob.exists():
            file.unlink()  # replacing it would split the content from the models that are linked to it
        else:
            file.chmod(0o444)
            file.replace(blob)
        return stored

    def _link(self, manifest: Manifest) -> None:
        target = self.folder(manifest.digest)
        if target.exists():
            return
        building = Path(tempfile.mkdtemp(dir=self._root / "models", prefix=".new-"))
        building.chmod(0o755)
        for file in manifest.files:
            path = building / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            os.link(self._root / "blobs" / file.sha256, path)
        building.rename(target)

    def _write(self, path: Path, content: BaseModel) -> None:
        temporary = path.with_name(f".{path.name}.new")
        temporary.write_text(content.model_dump_json(indent=1) + "\n", encoding="utf-8")
        temporary.replace(path)

    def _manifest_path(self, digest: str) -> Path:
        return self._root / "manifests" / f"{digest}.json"

    def _reference_path(self, source: str, revision: str) -> Path:
        return self._root / "refs" / f"{_name_digest(source, revision)}.json"


def _name_digest(source: str, revision: str) -> str:
    return hashlib.sha256(f"{source}\n{revision}".encode()).hexdigest()
