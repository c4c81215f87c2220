"""A program of a test in the client's pod, for as long as the test wants it."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from e2e.cluster.kubectl import Kubectl
from e2e.demo.partners import CLIENT_NAMESPACE

BEGUN = "begun"
"""The line that a program has to write first."""
_END = """
import os, pathlib, signal, sys
for entry in pathlib.Path("/proc").iterdir():
    if entry.name.isdigit() and int(entry.name) != os.getpid():
        try:
            if sys.argv[1].encode() in (entry / "cmdline").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:
            pass
"""


@contextmanager
def program(kubectl: Kubectl, source: str, *arguments: str) -> Iterator[list[str]]:
    """Python that runs until the end of the block; the lines that it said are in the list from then on."""
    mark, lines = secrets.token_hex(8), list[str]()
    where = ("exec", "--namespace", CLIENT_NAMESPACE, "deployment/client", "--")
    process = subprocess.Popen(
        kubectl.command([*where, "python3", "-u", "-c", source, *arguments, mark]),
        env=kubectl.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{BEGUN}\n"
        try:
            yield lines
        finally:
            # What runs in the pod has to end; the command here ends with it, and says that it was ended.
            kubectl(*where, "python3", "-c", _END, mark)
            output = process.stdout.read()
            lines += output.partition("command terminated")[0].splitlines()
