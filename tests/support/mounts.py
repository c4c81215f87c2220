"""File systems in memory that a test mounts, as root: small ones that fill up, and ones that cannot be written."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def memory_volume(folder: Path, options: str) -> Iterator[Path]:
    """`folder` as a file system of its own, with options of mount(8) such as `size=40m`. Raises CalledProcessError
    with what mount said where it may not."""
    _run("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder))
    try:
        yield folder
    finally:
        _run("umount", "--lazy", str(folder))


@contextmanager
def bound_to(folder: Path, source: Path) -> Iterator[None]:
    """`source` shown at `folder`, with the rights of its own file system."""
    _run("mount", "--bind", str(source), str(folder))
    try:
        yield
    finally:
        _run("umount", "--lazy", str(folder))


def remount(folder: Path, options: str) -> None:
    """The file system at `folder` with other options from now on: `ro`, another size."""
    _run("mount", "-o", f"remount,{options}", str(folder))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
