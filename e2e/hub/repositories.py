"""The repositories of a folder: ``ROOT/OWNER/NAME/BRANCH/files``, read anew when a file changes on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath

LARGE_BYTES = 10 * 1024 * 1024
CHUNK_BYTES = 1024 * 1024
DEFAULT_BRANCH = "main"


@dataclass(frozen=True)
class StoredFile:
    """A file of a repository, identified as the hub does: large ones by SHA-256, others by git blob id."""

    name: str
    path: Path
    size: int
    blob_id: str
    sha256: str

    @property
    def is_large(self) -> bool:
        return self.size >= LARGE_BYTES or self.name.endswith(".safetensors")

    @property
    def etag(self) -> str:
        return self.sha256 if self.is_large else self.blob_id


@dataclass(frozen=True)
class Revision:
    """One branch's content; its commit id is a function of that content alone."""

    repository: str
    branch: str
    commit: str
    files: tuple[StoredFile, ...]

    def file(self, name: str) -> StoredFile | None:
        return next((file for file in self.files if file.name == name), None)

    def folders(self) -> tuple[str, ...]:
        parents = {str(parent) for file in self.files for parent in PurePosixPath(file.name).parents}
        return tuple(sorted(parents - {"."}))


@dataclass(frozen=True)
class Repositories:
    root: Path

    def exists(self, repository: str) -> bool:
        return self._folder(repository) is not None

    def revision(self, repository: str, name: str) -> Revision | None:
        """Look a revision up by its branch or by its whole commit id."""
        folder = self._folder(repository)
        branches = sorted(path for path in folder.iterdir() if path.is_dir()) if folder else []
        for branch in branches:
            if branch.name == name:
                return _read(repository, branch)
        return next(
            (each for each in (_read(repository, path) for path in branches) if each.commit == name), None
        )

    def _folder(self, repository: str) -> Path | None:
        parts = PurePosixPath(repository).parts
        if len(parts) != 2 or any(part.startswith(".") for part in parts):
            return None
        folder = self.root.joinpath(*parts)
        return folder if folder.is_dir() else None


def _read(repository: str, branch: Path) -> Revision:
    paths = sorted(path for path in branch.rglob("*") if path.is_file())
    files = tuple(_stored_file(path.relative_to(branch).as_posix(), path) for path in paths)
    return Revision(repository, branch.name, _commit(files), files)


def _commit(files: Iterable[StoredFile]) -> str:
    listing = "".join(f"{file.name}\0{file.sha256}\n" for file in files)
    return hashlib.sha1(listing.encode(), usedforsecurity=False).hexdigest()


def _stored_file(name: str, path: Path) -> StoredFile:
    state = path.stat()
    blob_id, sha256 = _digests(path, state.st_size, state.st_mtime_ns)
    return StoredFile(name, path, state.st_size, blob_id, sha256)


@lru_cache(maxsize=1024)
def _digests(path: Path, size: int, changed_ns: int) -> tuple[str, str]:
    """Both digests; size and time of change are in the cache's key, so that an edited file is read again."""
    del changed_ns
    blob = hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
    whole = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            blob.update(chunk)
            whole.update(chunk)
    return blob.hexdigest(), whole.hexdigest()
