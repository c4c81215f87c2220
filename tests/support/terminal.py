"""A pseudo terminal, for what a command shows to people."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LINES, COLUMNS = 40, 100
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True, slots=True)
class TerminalRun:
    """The outcome of a command: its exit code, and all that it has written to the terminal."""

    code: int
    text: str

    @property
    def plain(self) -> str:
        """The text without colours and movements of the cursor."""
        return _CONTROL.sub("", self.text)


def run_in_terminal(command: Sequence[str], environment: Mapping[str, str] | None = None) -> TerminalRun:
    """Run a command to its end on a terminal of 40 lines of 100 columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    hidden = ("NO_COLOR", "CI", "COLUMNS", "LINES")
    inherited = {name: value for name, value in os.environ.items() if name not in hidden}
    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**inherited, "TERM": "xterm-256color", **(environment or {})},
    )
    os.close(theirs)
    try:
        content = b"".join(iter(lambda: _read(ours), b""))
    finally:
        os.close(ours)
        code = process.wait()
    return TerminalRun(code, content.decode().replace("\r\n", "\n"))


def _read(terminal: int) -> bytes:
    """Read what has been written, empty at the end: Linux reports EIO once nobody has the other side open."""
    try:
        return os.read(terminal, 65_536)
    except OSError:
        return b""
