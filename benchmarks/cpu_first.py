"""The first requests of a server beside the same ones asked again: part `first` of `benchmarks.cpu`.

Each start of a server is good for one kind of request. One connection asks the kind's requests in turn, then all of
them again, and then the first one after pauses: the request behind a pause finds the processor's caches as cold as the
first request of all does, so the two show what is the server's own.
"""

from __future__ import annotations

import http.client
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.cpu_cases import MAX_TOKENS, words
from benchmarks.cpu_peers import JSON, Peer, Running
from benchmarks.timing import Timing, compute_median
from embedserve_runtime.benchmarking.texts import build_mix

AGAIN = 3
PAUSES, PAUSE_SECONDS = 7, 0.1
POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Asked:
    """Wall time, and the server's CPU time.

    first: of each request when it is asked for the first time. again: medians of the same requests later. paused: the
    first request, after a pause.
    """

    first: Sequence[Timing]
    again: Sequence[Timing]
    paused: Timing


def kinds() -> Mapping[str, Sequence[Sequence[str]]]:
    """The texts of each request."""
    mix = build_mix(256)
    return {
        "short": [[words(10)]] * 20,
        "mixed": [[text] for text in mix[:20]],
        "longest": [[words(MAX_TOKENS - 2)]] * 20,
        "batch of 32": [mix[at : at + 32] for at in range(0, 160, 32)],
    }


def asked(peer: Peer, requests: Sequence[Sequence[str]]) -> Asked:
    """Of a server that is started for it."""
    server = Running(peer)
    try:
        _wait_until_ready(server)
        connection = http.client.HTTPConnection("127.0.0.1", peer.port)
        connection.connect()
        bodies = [peer.body(texts) for texts in requests]
        first = [_ask(server, connection, body) for body in bodies]
        again = [[_ask(server, connection, body) for body in bodies] for _ in range(AGAIN)]
        paused = []
        for _ in range(PAUSES):
            time.sleep(PAUSE_SECONDS)
            paused.append(_ask(server, connection, bodies[0]))
        connection.close()
    finally:
        server.close()
    return Asked(
        first, [compute_median(column) for column in zip(*again, strict=True)], compute_median(paused)
    )


def ratios(found: Sequence[Asked], of: Callable[[Timing], float]) -> tuple[float, float, float]:
    """Medians over the starts: of the first request to itself later, and to itself after a pause; of the second and
    all that follow to themselves later."""
    return (
        statistics.median(of(one.first[0]) / of(one.again[0]) for one in found),
        statistics.median(of(one.first[0]) / of(one.paused) for one in found),
        statistics.median(
            of(first) / of(again)
            for one in found
            for first, again in zip(one.first[1:], one.again[1:], strict=True)
        ),
    )


def later_seconds(found: Sequence[Asked]) -> float:
    return statistics.median(took.wall for one in found for took in one.again)


def _wait_until_ready(server: Running) -> None:
    """Without a request for vectors."""
    while server.status(b"/health") != http.HTTPStatus.OK:
        server.check()
        time.sleep(POLL_SECONDS)


def _ask(server: Running, connection: http.client.HTTPConnection, body: bytes) -> Timing:
    cpu, begun = server.running_seconds(), time.perf_counter()
    connection.request("POST", server.peer.path.decode(), body, JSON)
    answer = connection.getresponse()
    answer.read()
    wall = time.perf_counter() - begun
    if answer.status != http.HTTPStatus.OK:
        raise RuntimeError(f"{server.peer.name} answered {answer.status}")
    return Timing(wall, server.running_seconds() - cpu)
