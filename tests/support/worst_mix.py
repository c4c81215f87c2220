"""The requests that take the most memory of a server among those that its limits admit."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx

CLIENTS = 6
SECONDS = 300.0
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


def send_worst_mix(address: str, bodies: list[bytes], rounds: int) -> Counter[int]:
    """Send all bodies, several at once, so many times; return how often each status came. Raises where the server
    closes a connection."""

    def list_bodies() -> Iterator[bytes]:
        for number in range(rounds):
            # Another order each time puts other batches side by side.
            turn = number % len(bodies)
            yield from bodies[turn:] + bodies[:turn]

    with (
        httpx.Client(base_url=address, timeout=SECONDS) as client,
        ThreadPoolExecutor(CLIENTS) as clients,
    ):

        def send(body: bytes) -> int:
            headers = {"content-type": "application/json"}
            return client.post("/embed", content=body, headers=headers).status_code

        return Counter(clients.map(send, list_bodies()))
