"""Clients that ask by a service's name without a pause while the model behind it changes, and keep what they got."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from e2e.cluster.errors import ClusterError
from e2e.cluster.polling import wait_until
from e2e.in_pod import program
from e2e.services import Service

CLIENTS = 10
"""Half of them keep their connection, the others open one for each request."""
RATE = 50
"""Requests a second, of all clients together."""

_ASK = """
import http.client, json, sys, threading, time
host, clients, rate, text = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
body = json.dumps({"inputs": text, "model": "any"})
lock = threading.Lock()
def say(**what):
    with lock:
        # One write: the program is killed at any time, and half a line would be joined with what kubectl says then.
        sys.stdout.write(json.dumps(what) + "\\n")
def ask(number):
    keeps = number % 2 == 0
    connection, before, count, due = http.client.HTTPConnection(host, timeout=60), None, 0, time.monotonic()
    while True:
        started = time.time()
        try:
            connection.request("POST", "/embed", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            content = answer.read()
            if answer.status != 200:
                raise OSError(f"{answer.status} {content[:200]}")
        except (OSError, http.client.HTTPException) as error:
            say(client=number, failed=f"{type(error).__name__}: {error}")
            connection.close()
        else:
            count += 1
            space, vector = answer.headers["X-Embedserve-Vector-Space"], json.loads(content)[0][:8]
            got = dict(client=number, at=started, until=time.time(), space=space, vector=vector, count=count)
            if before is None or before["space"] != space:
                if before is not None:
                    say(**before)
                say(**got)
            elif count % 10 == 0:
                say(**got)
            before = got
        if not keeps:
            connection.close()
        due += clients / rate
        time.sleep(max(0, due - time.monotonic()))
print("begun", flush=True)
for number in range(clients):
    threading.Thread(target=ask, args=(number,)).start()
"""


@dataclass(frozen=True)
class Seen:
    """One answer. `at`, `until`: seconds since 1970 when it was asked for and had."""

    client: int
    at: float
    until: float
    space: str
    vector: tuple[float, ...]


@dataclass
class Watch:
    """The first and last answer of each space that the clients got, and every tenth. Known after they have ended."""

    seen: list[Seen] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    answers: int = 0

    def spaces_of(self, client: int) -> list[str]:
        """The spaces that a client got, in their order."""
        spaces: list[str] = []
        for answer in self.seen:
            if answer.client == client and spaces[-1:] != [answer.space]:
                spaces.append(answer.space)
        return spaces


@contextmanager
def watching(service: Service, text: str) -> Iterator[Watch]:
    """Clients in a pod, until the end of the block."""
    watch = Watch()
    host = service.get()["status"]["endpoint"]["url"].removeprefix("http://")
    with program(service.kubectl, _ASK, host, str(CLIENTS), str(RATE), text) as lines:
        yield watch
    counts: dict[int, int] = {}
    for line in lines:
        report: dict[str, Any] = json.loads(line) if line.startswith("{") else {"failed": line}
        if "failed" in report:
            watch.failed.append(str(report["failed"]))
            continue
        counts[report["client"]] = report.pop("count")
        watch.seen.append(Seen(**{**report, "vector": tuple(report["vector"])}))
    watch.answers = sum(counts.values())


def vector_at(service: Service, url: str, text: str) -> tuple[str, list[float]]:
    """Space and vector of a text: the first answer of a base URL. One that is an error is told at once."""
    script = (
        "import json, sys, urllib.request as u\n"
        "r = u.Request(sys.argv[1] + '/embed', json.dumps({'inputs': sys.argv[2]}).encode(), "
        "{'Content-Type': 'application/json'})\n"
        "a = u.urlopen(r, timeout=60)\n"
        "print(json.dumps([a.headers['X-Embedserve-Vector-Space'], json.load(a)[0][:8]]))\n"
    )
    answers: list[str] = []

    def is_answered() -> bool:
        # kube-proxy follows the endpoints after a moment, in which it leads to pods that have gone, or to none.
        try:
            answers.append(service.client.run("python3", "-c", script, url, text))
        except ClusterError as error:
            if "urllib.error.URLError" in str(error):
                return False
            raise
        return True

    wait_until(f"{url} is reached", is_answered, timeout_s=30)
    space, vector = json.loads(answers[0])
    return space, vector
