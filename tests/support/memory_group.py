"""A cgroup with a memory limit below that of this process, for servers that a test starts in it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """A cgroup of version 1 or 2."""

    folder: Path

    @property
    def enter(self) -> str:
        """Python that puts the process that runs it into the group."""
        return f"open({str(self.folder / 'cgroup.procs')!r}, 'w').write('0')"

    def count_kills(self) -> int:
        """Return how many processes of the group the kernel has ended for want of memory."""
        for name in ("memory.events", "memory.oom_control"):
            with contextlib.suppress(FileNotFoundError):
                lines = map(str.split, (self.folder / name).read_text().splitlines())
                return int(dict(lines)["oom_kill"])
        raise AssertionError(f"{self.folder} does not say how many processes were ended")


@contextmanager
def limit_memory(limit: int) -> Iterator[MemoryGroup]:
    """Make a group below this process's own, with a limit in bytes. Skips the test where that may not be done."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    paths = {controllers: path for _, controllers, path in lines}
    is_first = "memory" in paths
    own = ROOT / "memory" / paths["memory"].lstrip("/") if is_first else ROOT / paths[""].lstrip("/")
    folder = own / f"embedserve-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        try:
            (folder / ("memory.limit_in_bytes" if is_first else "memory.max")).write_text(str(limit))
        except OSError as error:
            pytest.skip(f"no memory limit can be set here: {error}")
        yield MemoryGroup(folder)
    finally:
        folder.rmdir()
