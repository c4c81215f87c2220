"""The streams that a command writes to: an output that cannot be written to ends it without a traceback."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class OutputFailed(Exception):
    """Standard output took no more.

    is_unread: whether nobody reads it any more, as behind `head`; else the text says why.
    """

    def __init__(self, error: OSError) -> None:
        super().__init__(error.strerror)
        self.is_unread = isinstance(error, BrokenPipeError)


class _OutputFile(io.FileIO):
    """The file behind standard output. After an error it discards what it gets, for the flush at the end."""

    _has_failed = False

    def write(self, content: ReadableBuffer, /) -> int:
        if self._has_failed:
            return memoryview(content).nbytes
        try:
            return super().write(content)
        except OSError as error:
            self._has_failed = True
            raise OutputFailed(error) from error


@contextmanager
def checked_output() -> Iterator[None]:
    """Make standard output writable in any locale within the context, at whose end all of it is written.

    Raises OutputFailed where that is not possible.
    """
    _replace_closed_streams()
    former = sys.stdout
    if former is not sys.__stdout__ or not isinstance(former, io.TextIOWrapper):
        yield  # a test or a program that embeds the command reads the output
        return
    sys.stdout = output = _open_output(former)
    try:
        yield
    finally:
        sys.stdout = former
        output.flush()


def _open_output(former: io.TextIOWrapper) -> TextIO:
    """Open the file behind `former` anew. Characters that the locale does not have are escaped."""
    former.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_OutputFile(former.fileno(), "w", closefd=False)),
        encoding=former.encoding,
        errors="backslashreplace",
        line_buffering=former.line_buffering,
        write_through=former.write_through,
    )


def _replace_closed_streams() -> None:
    """Discard what goes to a stream that was closed before the start: its file descriptor would become that of the next
    file or socket, and get the output."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - until the end


def write_error(message: str) -> None:
    """Write a line on standard error."""
    sys.stderr.write(f"embedserve: {message}\n")
    sys.stderr.flush()
