"""Caches compiled kernels in the store: one archive for each kind of pod, so that only the first pod of a kind
compiles.

The first pod of a kind packs the folder that its compiler has filled into `kernels/<key>.<SHA-256>.zip`; later ones
unpack it into a folder of their own, also from a read-only mount. Only an archive whose content is what its name says
is unpacked. Nothing here is needed: what cannot be read is compiled again, what cannot be written is left.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from embedserve_runtime.store.manifest import hash_file
from embedserve_runtime.store.volume import make_folder, sync

KERNELS = "kernels"
# Of what an archive may unpack to: some hundred kernels of a model are 30 MB.
MAX_BYTES = 2 * 2**30


@dataclass(frozen=True, slots=True)
class KernelCache:
    """Saves compiled kernels in the store and restores them.

    root: of the store; key: hexadecimal, of the kind of pod; folder: this process's own, which the compiler uses.
    """

    root: Path
    key: str
    folder: Path

    def restore(self) -> int:
        """Unpack the newest good archive of the key; return how many files the folder then has."""
        for archive in reversed(self._list_archives()):
            if _is_whole(archive) and self._unpack(archive):
                with contextlib.suppress(OSError):
                    # When it was last wanted, for `gc`.
                    os.utime(archive)
                break
        return self.count_files()

    def count_files(self) -> int:
        """Return how many files the folder has."""
        return len(_list_files(self.folder))

    def save(self) -> Path | None:
        """Pack the folder, which replaces the archives of this key. None where the store cannot be written."""
        kernels = self.root / KERNELS
        temporary = kernels / f".{self.key}.{uuid.uuid4().hex}"
        earlier = self._list_archives()
        try:
            make_folder(kernels)
            self._pack(temporary)
            target = kernels / f"{self.key}.{hash_file(temporary)}.zip"
            sync(temporary)
            temporary.replace(target)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            return None
        for archive in earlier:
            if archive != target:
                with contextlib.suppress(OSError):
                    archive.unlink()
        return target

    def _list_archives(self) -> list[Path]:
        """List the archives of the key, the oldest first."""
        archives: list[tuple[float, Path]] = []
        for path in (self.root / KERNELS).glob(f"{self.key}.*.zip"):
            with contextlib.suppress(OSError):
                archives.append((path.stat().st_mtime, path))
        return [path for _, path in sorted(archives)]

    def _pack(self, target: Path) -> None:
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for path in _list_files(self.folder):
                archive.write(path, path.relative_to(self.folder))

    def _unpack(self, archive: Path) -> bool:
        """Unpack into a temporary folder first, so that a process that dies meanwhile leaves nothing half done."""
        temporary = self.folder.parent / f"{self.folder.name}.{uuid.uuid4().hex}"
        try:
            with zipfile.ZipFile(archive) as packed:
                if sum(entry.file_size for entry in packed.infolist()) > MAX_BYTES:
                    return False
                packed.extractall(temporary)
            shutil.copytree(temporary, self.folder, dirs_exist_ok=True)
        except (OSError, zipfile.BadZipFile):
            return False
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return True


def make_kernel_folder(root: Path) -> None:
    """Make the folder of archives, where the store can be written: servers mount it for writing, all else for reading,
    and not every volume lets the kubelet make it."""
    with contextlib.suppress(OSError):
        make_folder(root / KERNELS)


def _is_whole(archive: Path) -> bool:
    """Return whether an archive has the content that its name is the digest of."""
    try:
        return hash_file(archive) == archive.name.split(".")[1]
    except OSError:
        return False


def _list_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@dataclass(frozen=True, slots=True)
class KernelArchive:
    """An archive of kernels.

    age_s: since it was written or unpacked.
    """

    name: str
    size: int
    age_s: float


def list_kernel_archives(root: Path, now: float) -> Iterator[KernelArchive]:
    """List the archives of a store, and what a dead writer left of one."""
    folder = root / KERNELS
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        with contextlib.suppress(FileNotFoundError):
            state = path.stat()
            yield KernelArchive(path.name, state.st_size, now - state.st_mtime)
