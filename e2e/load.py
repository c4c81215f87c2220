"""Requests without a pause, from a pod, as long as a test wants them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from e2e.in_pod import program
from e2e.services import Service

_ASK_FOR_EVER = """
import http.client, json, socket, sys, threading
# By the Service's address: how quickly names are found on a busy node is not what is tried.
host, threads, text = socket.gethostbyname(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
keeps = sys.argv[4] == "keeps connections"
body = json.dumps({"inputs": text}).encode()
headers = {"Content-Type": "application/json", **({} if keeps else {"Connection": "close"})}
def ask():
    asked, connection = 0, http.client.HTTPConnection(host, timeout=120)
    while True:
        asked += 1
        try:
            # It opens another connection after an answer that said `Connection: close`, and only then.
            connection.request("POST", "/embed", body, headers)
            answer = connection.getresponse()
            said = answer.read()
            if answer.status != 200:
                print("failed:", answer.status, said[:200], flush=True)
        except (OSError, http.client.HTTPException) as error:
            print("failed:", repr(error), flush=True)
            connection.close()
        if asked % 10 == 1:
            print("asked", asked, flush=True)
print("begun", flush=True)
for _ in range(threads):
    threading.Thread(target=ask).start()
"""


@dataclass
class Load:
    """The outcomes of the requests; known after they have ended."""

    asked: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


@contextmanager
def asking(
    service: Service, *, threads: int = 1, text: str = "still here", keeps_connections: bool = False
) -> Iterator[Load]:
    """Requests of some threads, each with one text, one after the other, until the end of the block."""
    connections = "keeps connections" if keeps_connections else "a connection each"
    load = Load()
    host = service.get()["status"]["endpoint"]["url"].removeprefix("http://")
    with program(service.kubectl, _ASK_FOR_EVER, host, str(threads), text, connections) as lines:
        yield load
    for line in lines:
        (load.failed if line.startswith("failed") else load.asked).append(line)
