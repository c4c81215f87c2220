"""Requests without a pause, from a pod, as long as a test wants them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from e2e.in_pod import program
from e2e.services import Service

_ASK_FOR_EVER = """
import json, socket, sys, threading, urllib.request
# By the Service's address: how quickly names are found on a busy node is not what is tried.
url, threads, text = f"http://{socket.gethostbyname(sys.argv[1])}/embed", int(sys.argv[2]), sys.argv[3]
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
        if asked % 10 == 1:
            print("asked", asked, flush=True)
print("begun", flush=True)
for _ in range(threads):
    threading.Thread(target=ask).start()
"""


@dataclass
class Load:
    """What became of the requests; known after they have ended."""

    asked: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


@contextmanager
def asking(service: Service, *, threads: int = 1, text: str = "still here") -> Iterator[Load]:
    """Requests of some threads, each with one text, one after the other, until the end of the block."""
    load = Load()
    host = service.get()["status"]["endpoint"]["url"].removeprefix("http://")
    with program(service.kubectl, _ASK_FOR_EVER, host, str(threads), text) as said:
        yield load
    for line in said:
        (load.failed if line.startswith("failed") else load.asked).append(line)
