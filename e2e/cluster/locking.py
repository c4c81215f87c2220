"""One at a time: two runs on the same machine share the cluster, its caches and its images."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def only_one(lock: Path) -> Iterator[None]:
    """The second waits for the first; a lock goes with its process, so that none is ever left behind."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
