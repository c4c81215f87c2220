"""Requests without a pause, from a pod, as long as a test wants them."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from e2e.demo.partners import CLIENT_NAMESPACE
from e2e.services import Service

_ASK_FOR_EVER = """
import json, sys, threading, urllib.request
url, threads, text = sys.argv[1] + "/embed", int(sys.argv[2]), sys.argv[3]
body = json.dumps({"inputs": text}).encode()
def ask():
    asked = 0
    while True:
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        asked += 1
        try:
            urllib.request.urlopen(request, timeout=120).read()
        except OSError as error:
            print("failed:", error, flush=True)
        if asked % 10 == 0:
            print("asked", asked, flush=True)
print("begun", flush=True)
for _ in range(threads):
    threading.Thread(target=ask).start()
"""
END = """
import os, pathlib, signal, sys
for entry in pathlib.Path("/proc").iterdir():
    if entry.name.isdigit() and int(entry.name) != os.getpid():
        try:
            if sys.argv[1].encode() in (entry / "cmdline").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:
            pass
"""


@dataclass
class Load:
    """What became of the requests; known after they have ended."""

    asked: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


@contextmanager
def asking(service: Service, *, threads: int = 1, text: str = "still here") -> Iterator[Load]:
    """Requests of some threads, each with one text, one after the other, until the end of the block."""
    kubectl, load, mark = service.kubectl, Load(), secrets.token_hex(8)
    url = service.get()["status"]["endpoint"]["url"]
    where = ("exec", "--namespace", CLIENT_NAMESPACE, "deployment/client", "--")
    command = kubectl.command([*where, "python3", "-u", "-c", _ASK_FOR_EVER, url, str(threads), text, mark])
    process = subprocess.Popen(
        command, env=kubectl.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        try:
            yield load
        finally:
            # What runs in the pod has to end; the command here ends with it.
            kubectl(*where, "python3", "-c", END, mark)
            for line in process.stdout.read().splitlines():
                (load.failed if line.startswith("failed") else load.asked).append(line)
