"""Run a command to its end; a failure becomes a ClusterError that shows the command and what it said."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from e2e.cluster.errors import ClusterError
from e2e.cluster.layout import NETNS_PATH

SAID_LINES = 25


def run(
    command: Sequence[str | Path],
    *,
    stdin: str | None = None,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    timeout_s: float = 300,
) -> str:
    """Return standard output."""
    result = attempt(command, stdin=stdin, environment=environment, folder=folder, timeout_s=timeout_s)
    if result.returncode != 0:
        output = "\n".join((result.stdout + result.stderr).strip().splitlines()[-SAID_LINES:])
        raise ClusterError(f"exit code {result.returncode} from: {_printed(command)}\n{output}")
    return result.stdout


def attempt(
    command: Sequence[str | Path],
    *,
    stdin: str | None = None,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    timeout_s: float = 300,
) -> subprocess.CompletedProcess[str]:
    """Run a command and return its result; the caller judges the exit code."""
    try:
        return subprocess.run(
            [str(word) for word in command],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            env=None if environment is None else dict(environment),
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"no end after {timeout_s:.0f} s: {_printed(command)}") from error
    except FileNotFoundError as error:
        raise ClusterError(f"command not found: {command[0]}") from error


def in_node(command: Sequence[str | Path]) -> list[str]:
    """The command that runs inside the node's network namespace.

    Not ``ip netns exec``: that remounts /sys and hides the cgroup mounts.
    """
    return ["nsenter", f"--net={NETNS_PATH}", "--", *(str(word) for word in command)]


def _printed(command: Sequence[str | Path]) -> str:
    return shlex.join(str(word) for word in command)
