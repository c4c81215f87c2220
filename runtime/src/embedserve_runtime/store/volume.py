"""Handles the volume that a store is on: explains its errors, and does the steps that differ between file systems."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from embedserve_runtime.errors import VolumeError, VolumeFull, VolumePermissionDenied, VolumeReadOnly

# What a file system answers that has no hard links, or no more of them for this file.
_NO_LINKS = frozenset(
    {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV, errno.EACCES}
)
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextmanager
def volume_errors(root: Path) -> Iterator[None]:
    """Raise errors of the file system as VolumeFull, VolumeReadOnly, VolumePermissionDenied or VolumeError."""
    try:
        yield
    except OSError as error:
        raise volume_error(root, error) from error


def volume_error(root: Path, error: OSError) -> VolumeError:
    """Explain `error`, which occurred while writing under `root`, to the owner of the volume."""
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return VolumeFull(
            f"model.store: the volume of {root} is full ({reason}): {_to_megabytes(count_free_bytes(root))} MB are "
            "free; enlarge it, or remove models with `embedserve store gc`"
        )
    if error.errno == errno.EROFS:
        return VolumeReadOnly(
            f"model.store: {root} is mounted read-only and the model is not in it: fetch it with `embedserve fetch` "
            "where the volume is mounted for writing"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return VolumePermissionDenied(
            f"model.store: {error.filename or root} may not be written by user {os.geteuid()}, group {os.getegid()}: "
            f"{_describe_owner(root)}; set securityContext.fsGroup, or where the volume's driver does not apply it, "
            "give the folder to that group"
        )
    return VolumeError(f"model.store: {root} cannot be used: {reason}")


def require_free_bytes(root: Path, needed: int) -> None:
    """Raise VolumeFull when fewer than `needed` bytes are free."""
    free = count_free_bytes(root)
    if free < needed:
        raise VolumeFull(
            f"model.store: the model needs {_to_megabytes(needed)} MB more and {root} has {_to_megabytes(free)} MB "
            "free; enlarge the volume, or remove models with `embedserve store gc`"
        )


def count_free_bytes(root: Path) -> int:
    """Count the bytes that this user may still write; 0 if unknown."""
    try:
        return shutil.disk_usage(root).free
    except OSError:
        return 0


def make_folder(path: Path) -> None:
    """Make a folder with its parents, writable for the group: pods that share a volume share its group only."""
    if path.is_dir():
        return
    make_folder(path.parent)
    try:
        path.mkdir()
    except FileExistsError:
        return
    path.chmod(stat.S_IMODE(path.stat().st_mode) | stat.S_IWGRP)


def refuses_links(error: OSError) -> bool:
    """Return whether an error of `os.link` means that this file cannot have another name."""
    return error.errno in _NO_LINKS


def link_or_copy(source: Path, target: Path) -> bool:
    """Give a file a second name, or copy it where the file system has no links. Whether it is a link."""
    try:
        os.link(source, target)
    except OSError as error:
        if not refuses_links(error):
            raise
        shutil.copyfile(source, target)
        return False
    return True


def write_atomically(path: Path, content: bytes, temporary: Path) -> None:
    """Write through `temporary`, a path on the same volume that is this process's own; readers see all or nothing."""
    temporary.write_bytes(content)
    sync(temporary)
    temporary.replace(path)


def sync(path: Path) -> None:
    """Have the disk hold a file's content, before a rename makes it visible."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _describe_owner(root: Path) -> str:
    try:
        state = root.stat()
    except OSError:
        return "it cannot be looked at"
    return f"it belongs to {state.st_uid}:{state.st_gid} with mode {stat.S_IMODE(state.st_mode):o}"


def _to_megabytes(count: int) -> int:
    return -(-count // 10**6)
