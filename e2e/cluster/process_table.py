"""The processes of this machine, those of the node's pods among them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def list_commands() -> Iterator[tuple[int, list[bytes]]]:
    """Yield the process id and the words of the command of each process that has not ended meanwhile."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        yield int(folder.name), words
