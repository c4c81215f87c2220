"""The requests that take the most memory of a server among those that its limits admit."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx

CLIENTS = 6
SECONDS = 3_000.0
"""How long a client waits: on a busy machine a queue full of requests takes minutes."""
WORD = "cat "
"""One token of most vocabularies."""


def build_worst_mix(max_length: int, queue_inputs: int, max_body_bytes: int) -> list[bytes]:
    """Return bodies of `POST /embed`: two texts of the greatest length, batches of long and of mixed texts, three
    quarters as many short texts as the queue takes, and a body of the largest size."""
    longest, usual = WORD * max_length, min(max_length, 512)
    mixed = [WORD * (7 * number % usual + 1) for number in range(24)]
    return [
        json.dumps({"inputs": inputs}).encode()
        for inputs in (
            longest,
            longest,
            [WORD * usual] * 8,
            mixed,
            [WORD * 8] * (queue_inputs // 2),
            [WORD] * (queue_inputs // 4),
            WORD * (max_body_bytes // len(WORD) - 64),
        )
    ]


def send_worst_mix(address: str, bodies: list[bytes], seconds: float = 0.0) -> Counter[int]:
    """Send all bodies, several at once, and go on with that until so many seconds have passed; return how often each
    status came. Raises where the server closes a connection."""
    lock, left = threading.Lock(), _repeat_bodies(bodies, time.monotonic() + seconds)
    with (
        httpx.Client(base_url=address, timeout=SECONDS) as client,
        ThreadPoolExecutor(CLIENTS) as clients,
    ):

        def send_remaining() -> Counter[int]:
            statuses = Counter[int]()
            while True:
                with lock:
                    body = next(left, None)
                if body is None:
                    return statuses
                answer = client.post("/embed", content=body, headers={"content-type": "application/json"})
                statuses[answer.status_code] += 1

        sent = [clients.submit(send_remaining) for _ in range(CLIENTS)]
        return sum((one.result() for one in sent), Counter[int]())


def _repeat_bodies(bodies: list[bytes], deadline: float) -> Iterator[bytes]:
    """Yield all bodies at least once; another order each time puts other batches side by side."""
    yield from bodies
    for number in itertools.count(1):
        turn = number % len(bodies)
        for body in bodies[turn:] + bodies[:turn]:
            if time.monotonic() >= deadline:
                return
            yield body
