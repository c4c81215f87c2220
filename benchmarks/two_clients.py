"""What a client feels of another that sends a hundred times as much.

    python -m benchmarks.two_clients [--seconds N] [--rate N]

One server process with trained MiniLM, started by the real command. The small client sends `--rate` short texts a
second on time, one a request, whether or not the last was answered; the large one a hundred times as many, twenty a
request, refused ones included. Prints p50 and p95 of the small client alone, beside the large one where the server
tells them apart, and where it does not.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.command_line import parser_of
from tests.support.models import minilm_folder
from tests.support.monitored_server import start_monitored_server

TEXT = "What is deep learning, and what is it good for?"
TEXTS_AT_ONCE, TIMES = 20, 100
HEADER = "X-Tenant"
MAX_CONNECTIONS = 500


@dataclass
class Answers:
    """seconds: of each request that was answered. refused: how many were not."""

    seconds: list[float] = field(default_factory=list)
    refused: int = 0


@dataclass(frozen=True)
class Sender:
    """Sends one client's requests. texts: of each."""

    http: httpx.AsyncClient
    name: str
    texts: int
    answers: Answers = field(default_factory=Answers)

    async def send_on_time(self, rate: float, seconds: float) -> None:
        """Send requests at a rate, each in a task of its own, and wait for the last."""
        started = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for number in range(round(rate * seconds)):
                await asyncio.sleep(max(0.0, started + number / rate - time.perf_counter()))
                group.create_task(self._send())

    async def _send(self) -> None:
        begun = time.perf_counter()
        body = {"inputs": [TEXT] * self.texts, "truncate": True}
        response = await self.http.post("/embed", json=body, headers={HEADER: self.name})
        if response.status_code == 200:
            self.answers.seconds.append(time.perf_counter() - begun)
        else:
            self.answers.refused += 1


async def measure(url: str, rate: float, seconds: float, *, beside: bool) -> tuple[Answers, Answers]:
    limits = httpx.Limits(max_connections=MAX_CONNECTIONS)
    async with (
        httpx.AsyncClient(base_url=url, limits=limits, timeout=60) as small_http,
        httpx.AsyncClient(base_url=url, limits=limits, timeout=60) as large_http,
    ):
        small, large = Sender(small_http, "small", 1), Sender(large_http, "large", TEXTS_AT_ONCE)
        async with asyncio.TaskGroup() as group:
            if beside:
                group.create_task(large.send_on_time(rate * TIMES / TEXTS_AT_ONCE, seconds))
                await asyncio.sleep(seconds / 10)  # until its requests wait
            await small.send_on_time(rate, seconds * 0.8)
        return small.answers, large.answers


def format_row(case: str, small: Answers, large: Answers) -> str:
    marks = statistics.quantiles(small.seconds, n=100)
    return (
        f"{case:34} p50 {marks[49] * 1e3:7.1f} ms, p95 {marks[94] * 1e3:7.1f} ms of {len(small.seconds)} requests "
        f"({small.refused} refused); the large one: {len(large.seconds)} ({large.refused} refused)"
    )


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=10.0)
    chosen = parser.parse_args()
    cases: tuple[tuple[str, dict[str, Any], bool], ...] = (
        ("alone", {"client_header": HEADER}, False),
        ("beside the large one, told apart", {"client_header": HEADER}, True),
        ("beside it, not told apart", {}, True),
    )
    for case, server, beside in cases:
        with tempfile.TemporaryDirectory() as folder:
            settings = {"server": server, "batching": {"max_batch_tokens": "auto", "max_queue_inputs": 2_000}}
            with start_monitored_server(minilm_folder(), Path(folder), settings) as running:
                url = f"http://{running.host}:{running.port}"
                small, large = asyncio.run(measure(url, chosen.rate, chosen.seconds, beside=beside))
        print(format_row(case, small, large), flush=True)


if __name__ == "__main__":
    main()
