"""Reads archives of a model folder at a URL: fetched as one file, compared with their SHA-256, then read."""

from __future__ import annotations

import shutil
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from lzma import LZMAError
from pathlib import Path, PurePosixPath
from typing import IO
from urllib.parse import urlsplit

from embedserve_runtime.config import ModelSettings
from embedserve_runtime.errors import (
    EmbedserveError,
    ModelAccessDenied,
    ModelInvalid,
    ModelNotFound,
    SourceUnavailable,
)
from embedserve_runtime.sources.remote import ExpectedHash, Listing, RemoteFile, Request
from embedserve_runtime.sources.selection import is_safe
from embedserve_runtime.store.volume import make_folder, require_free_bytes

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MAX_FILES = 10_000
KINDS = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.xz", ".zip")
# What the readers raise for content that is not what the name says.
_UNREADABLE = (tarfile.TarError, zipfile.BadZipFile, zlib.error, LZMAError, zstd.ZstdError, EOFError)


class ArchiveSource:
    """A source that is one archive. Its only file is the archive itself."""

    def __init__(self, settings: ModelSettings) -> None:
        """Read the archive's name from the settings. Raises ModelInvalid for a kind of archive that is not read."""
        self._url = settings.source
        self._source_name = settings.source_name
        self.host = urlsplit(settings.source).hostname or settings.source
        self._sha256 = settings.sha256 or ""
        self._token = settings.token.get_secret_value() if settings.token is not None else None
        self.name = PurePosixPath(urlsplit(settings.source).path).name
        if not self.name.endswith(KINDS):
            raise ModelInvalid(
                f"model.source: {settings.source_name} is not an archive that can be read: its name must end in "
                f"{', '.join(KINDS)}"
            )

    def list_files(self) -> Listing:
        return Listing(self._sha256, (RemoteFile(self.name, None, ExpectedHash("sha256", self._sha256)),))

    def request(self, file: RemoteFile) -> Request:
        del file
        return Request(self._url, {"Authorization": f"Bearer {self._token}"} if self._token else {})

    def explain(self, status: int, headers: Mapping[str, str], file: RemoteFile) -> EmbedserveError:
        del headers, file
        if status in (404, 410):
            return ModelNotFound(f"{self._source_name} does not exist: HTTP {status}")
        if status in (401, 403):
            return ModelAccessDenied(
                f"{self._source_name} may not be read: HTTP {status}; set a token that may"
            )
        if status == 412:
            return SourceUnavailable(f"{self._source_name} was changed while it was fetched: try again")
        return SourceUnavailable(f"{self._source_name} answered HTTP {status}")

    def can_verify(self, headers: Mapping[str, str]) -> bool:
        del headers
        return True


@dataclass(frozen=True, slots=True)
class ArchiveMember:
    """One file of an archive. path: below the model's folder; size: once unpacked; open: its content, read once."""

    path: str
    size: int
    open: Callable[[], IO[bytes]]


def unpack(archive: Path, folder: Path) -> list[str]:
    """Write the archive's files into `folder`, and give their paths.

    A single folder at the top of the archive is left out. Raises ModelInvalid for what cannot be read, links, paths
    that lead out of the folder and more than 10,000 files; VolumeFull where the content has no room.
    """
    top = _find_top_folder(archive)
    paths: list[str] = []
    for member in _iterate_members(archive):
        path = member.path.removeprefix(f"{top}/") if top else member.path
        if len(paths) >= MAX_FILES:
            raise ModelInvalid(f"{archive.name} has more than {MAX_FILES} files")
        require_free_bytes(folder, member.size)
        target = folder / path
        make_folder(target.parent)
        with _archive_errors(archive), member.open() as content, target.open("wb") as file:
            shutil.copyfileobj(content, file, 1 << 20)
        paths.append(path)
    return paths


def _find_top_folder(archive: Path) -> str | None:
    """Find the folder that everything in the archive is in."""
    tops = {
        member.path.partition("/")[0] if "/" in member.path else None for member in _iterate_members(archive)
    }
    return tops.pop() if len(tops) == 1 else None


def _iterate_members(archive: Path) -> Iterator[ArchiveMember]:
    """Yield the regular files, in the archive's order."""
    with _archive_errors(archive):
        yield from (
            _iterate_zip_members(archive) if archive.name.endswith(".zip") else _iterate_tar_members(archive)
        )


def _iterate_tar_members(archive: Path) -> Iterator[ArchiveMember]:
    with _open_tar(archive) as tar:
        for entry in tar:
            if entry.isdir():
                continue
            path = _check_path(archive, entry.name)
            if not entry.isreg():
                raise ModelInvalid(f"{archive.name}: {path} is a link or a device; pack the files themselves")
            yield ArchiveMember(path, entry.size, partial(_open_content, tar, entry))


def _iterate_zip_members(archive: Path) -> Iterator[ArchiveMember]:
    with zipfile.ZipFile(archive) as content:
        for entry in content.infolist():
            if entry.is_dir():
                continue
            path = _check_path(archive, entry.filename)
            if entry.external_attr >> 28 not in (0, 8):  # the file type of Unix: none said, or a regular file
                raise ModelInvalid(f"{archive.name}: {path} is a link or a device; pack the files themselves")
            yield ArchiveMember(path, entry.file_size, partial(content.open, entry))


@contextmanager
def _open_tar(archive: Path) -> Iterator[tarfile.TarFile]:
    if not archive.name.endswith(".zst"):
        with tarfile.open(archive, "r:*") as tar:
            yield tar
        return
    with zstd.ZstdFile(archive) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
        yield tar


def _open_content(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> IO[bytes]:
    content = tar.extractfile(entry)
    if content is None:
        raise ModelInvalid(f"{entry.name} is not a regular file")
    return content


def _check_path(archive: Path, path: str) -> str:
    plain = path.removeprefix("./")
    if not is_safe(plain):
        raise ModelInvalid(f"{archive.name}: the path {path!r} leads out of the model's folder")
    return str(PurePosixPath(plain))


@contextmanager
def _archive_errors(archive: Path) -> Iterator[None]:
    try:
        yield
    except _UNREADABLE as error:
        raise ModelInvalid(f"{archive.name} cannot be read as its name says: {error}") from error
