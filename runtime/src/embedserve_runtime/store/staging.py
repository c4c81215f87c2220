"""Provides staging folders, where a writer builds what it then renames into place.

Their names are unique, so writers never share one. A name begins with a key (what is written) and the time: of two
writers of one thing the earlier goes on and the later may wait for it. What a dead writer left is taken over by the
next writer of the same key (a download goes on where it ended), and removed by any writer after an hour.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from embedserve_runtime.errors import SourceUnavailable
from embedserve_runtime.store.volume import make_folder
from embedserve_runtime.store.writers import LeaseRenewer, read_lease

STAGING = "staging"
FILES = "files"
ABANDONED_AFTER_S = 3600.0
WATCH_S = 0.2
_PROBE = ".now-"


@dataclass(frozen=True, slots=True)
class Staging:
    """The staging folder of this writer.

    files: what is taken over by the next one when this one dies.
    """

    folder: Path
    lease: LeaseRenewer

    @property
    def files(self) -> Path:
        return self.folder / FILES

    def check(self) -> None:
        """Raise SourceUnavailable when another process has taken this folder over."""
        if self.lease.lost.is_set():
            raise SourceUnavailable(
                f"another process took {self.folder} over, since this one had been silent for long: try again"
            )

    def make_temporary_path(self) -> Path:
        """Make a path that nobody else has."""
        return self.folder / uuid.uuid4().hex


@contextmanager
def open_staging(root: Path, key: str) -> Iterator[Staging]:
    """Open a new staging folder for `key`, with the files that dead writers of it left.

    Removed at the end; after an error its files are kept for the next one.
    """
    parent = root / STAGING
    make_folder(parent)
    folder = parent / f"{key}.{time.time_ns():020d}.{uuid.uuid4().hex[:8]}"
    make_folder(folder)
    lease = LeaseRenewer(folder)
    staging = Staging(folder, lease)
    try:
        _take_over(staging, key)
        make_folder(staging.files)
        remove_abandoned_folders(root, ABANDONED_AFTER_S)
        yield staging
    except BaseException:
        _leave(staging)
        raise
    lease.stop(release=False)
    shutil.rmtree(folder, ignore_errors=True)


def require_writable(root: Path) -> None:
    """Raise OSError where a writer could not begin, before it asks anyone for anything."""
    make_folder(root / STAGING)
    probe = root / STAGING / f"{_PROBE}{uuid.uuid4().hex}"
    probe.touch()
    probe.unlink(missing_ok=True)


def find_live_writer(root: Path, key: str) -> Path | None:
    """Find the folder of the first live writer of a key."""
    return min(
        (path for path in _list_folders(root) if _parse_key(path) == key and not _is_dead(path)), default=None
    )


def find_earlier_writer(root: Path, own: Staging) -> Path | None:
    """Find the folder of a live writer of the same key that began before this one."""
    key = _parse_key(own.folder)
    writers = sorted(
        path
        for path in _list_folders(root)
        if _parse_key(path) == key and path.name < own.folder.name and not _is_dead(path)
    )
    return writers[0] if writers else None


def wait_for_writer(writer: Path) -> None:
    """Return once the writer has ended: its folder is gone, or it is dead."""
    while writer.exists() and not _is_dead(writer):
        time.sleep(WATCH_S)


def remove_abandoned_folders(root: Path, older_than_s: float) -> list[Path]:
    """Remove what dead writers left and none took over for so long; gives the folders that were removed."""
    removed = []
    for path in _list_folders(root):
        if _is_dead(path) and _measure_silence_s(path) >= older_than_s:
            shutil.rmtree(path, ignore_errors=True)
            removed.append(path)
    for probe in (root / STAGING).glob(f"{_PROBE}*"):
        probe.unlink(missing_ok=True)
    return removed


def _leave(staging: Staging) -> None:
    """Keep what a next writer can go on from; all else is removed."""
    has_files = staging.files.is_dir() and any(staging.files.iterdir())
    staging.lease.stop(release=has_files)
    if not has_files:
        shutil.rmtree(staging.folder, ignore_errors=True)
        return
    for path in staging.folder.iterdir():
        if path.is_dir() and path != staging.files:
            shutil.rmtree(path, ignore_errors=True)


def _take_over(staging: Staging, key: str) -> None:
    """Take over the largest files of dead writers and remove the others. If two processes try, one rename works."""
    dead = [
        path
        for path in _list_folders(staging.folder.parent.parent)
        if path != staging.folder and _parse_key(path) == key
    ]
    left = sorted(
        (path for path in dead if _is_dead(path)), key=lambda path: _count_bytes(path / FILES), reverse=True
    )
    for path in left:
        if not staging.files.exists():
            # Fails where another one takes it in this moment, or there is nothing.
            with contextlib.suppress(OSError):
                (path / FILES).rename(staging.files)
        shutil.rmtree(path, ignore_errors=True)


def _list_folders(root: Path) -> list[Path]:
    parent = root / STAGING
    return [path for path in parent.iterdir() if path.is_dir()] if parent.is_dir() else []


def _is_dead(folder: Path) -> bool:
    try:
        writer, _ = read_lease(folder)
        # Without a lease the writer is about to write it, or died in that moment.
        return (
            writer.is_dead(_measure_silence_s(folder))
            if writer
            else _measure_silence_s(folder) > ABANDONED_AFTER_S
        )
    except FileNotFoundError:
        return True


def _measure_silence_s(folder: Path) -> float:
    """Measure the seconds since the writer renewed its lease, by the file server's clock."""
    probe = folder.parent / f"{_PROBE}{uuid.uuid4().hex}"
    try:
        _, renewed = read_lease(folder)
        probe.touch()
        return probe.stat().st_mtime - renewed
    except FileNotFoundError:
        return 0.0
    finally:
        probe.unlink(missing_ok=True)


def _count_bytes(folder: Path) -> int:
    """Count the bytes of a folder. Another writer may be taking files at this moment: those do not count."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += (Path(parent) / name).stat().st_size
    return total


def _parse_key(folder: Path) -> str:
    return folder.name.partition(".")[0]
