"""Holds what a file says, and reads it again when the file changes: a mounted Secret or ConfigMap, for example."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from embedserve_runtime.errors import EmbedserveError

log = logging.getLogger(__name__)

POLL_INTERVAL_SECONDS = 1.0
"""Seconds between two looks at a file while requests come."""

T = TypeVar("T")


class WatchedFile(Generic[T]):
    """The content of a file as it is now, read again at most once per POLL_INTERVAL_SECONDS.

    What cannot be read changes nothing: the content that was there before stays.

    name: what the file holds, for the log. read: raises EmbedserveError for what cannot be read. initial: the content
    until the file has been read once. clock: monotonic, in seconds.
    """

    def __init__(
        self, path: Path, name: str, read: Callable[[Path], T], initial: T, clock: Callable[[], float]
    ) -> None:
        self._path = path
        self._name = name
        self._read = read
        self._content = initial
        self._clock = clock
        self._version: tuple[int, ...] | None = None
        self._due = clock()

    def get(self) -> T:
        """Return the content."""
        now = self._clock()
        if now >= self._due:
            self._due = now + POLL_INTERVAL_SECONDS
            self._refresh()
        return self._content

    def _refresh(self) -> None:
        version = self._read_version()
        if version == self._version:
            return
        self._version = version
        try:
            content = self._read(self._path)
        except EmbedserveError as error:
            log.error("the %s stay what they were: %s", self._name, error.message)
            return
        self._content = content
        log.info("%s read", self._name, extra={"file": str(self._path)})

    def _read_version(self) -> tuple[int, ...]:
        """Return what differs once the file has been written again or replaced; empty where there is none."""
        try:
            status = self._path.stat()
        except OSError:
            return ()
        # A program may set the time of the last change back (rsync does); that of the inode it cannot set.
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
