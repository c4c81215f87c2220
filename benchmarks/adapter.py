"""How long does the metrics adapter take to answer for many pods, and how much memory does it need?

    python -m benchmarks.adapter [--pods N] [--rounds N]

The adapter runs in this process. Another one plays the API server, which lists the pods, and the pods: each has an
address of its own (127.x.y.z) and a page of some 800 lines. Every round asks anew, since what was kept is forgotten
before it; a question is a list of the pods, a request to each, and the answer as JSON.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from urllib.parse import parse_qs, urlsplit

from benchmarks.command_line import parser_of

HISTOGRAMS = 36
BUCKETS = 20
LABELS = {f"example.com/label-{number}": "a value of some length" for number in range(12)}


def page(depth: int) -> str:
    """A metrics page of the size of the runtime's: mostly histograms, and a few gauges."""
    lines = []
    for number in range(HISTOGRAMS):
        name = f"embedserve_some_duration_{number}_seconds"
        lines += [f"# HELP {name} Seconds of something.", f"# TYPE {name} histogram"]
        lines += [
            f'{name}_bucket{{route="/embed",le="{2**bucket}"}} {bucket * 17}' for bucket in range(BUCKETS)
        ]
        lines += [f'{name}_sum{{route="/embed"}} 12.5', f'{name}_count{{route="/embed"}} 340']
    for name in ("embedserve_queue_depth", "embedserve_queue_seconds", "embedserve_requests_in_flight"):
        lines += [f"# HELP {name} Something that waits.", f"# TYPE {name} gauge", f"{name} {depth}"]
    return "\n".join([*lines, ""])


def pod(number: int, port: int) -> dict[str, object]:
    """A pod as the API server lists it."""
    return {
        "metadata": {
            "name": f"docs-ab432b66-{number:05}",
            "namespace": "search",
            "uid": f"00000000-0000-0000-0000-{number:012}",
            "labels": {"embedserve.dev/service": "docs", **LABELS},
            "annotations": LABELS,
            "managedFields": [{"manager": "kubelet", "fieldsV1": LABELS} for _ in range(6)],
        },
        "spec": {
            "containers": [{"name": "runtime", "ports": [{"name": "management", "containerPort": port}]}]
        },
        "status": {
            "phase": "Running",
            "podIP": f"127.1.{number // 250}.{number % 250 + 1}",
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


class Answerer(asyncio.Protocol):
    """The least of HTTP: one answer for each request, on a connection that stays."""

    def __init__(self, answer: Callable[[str], bytes]) -> None:
        self._answer = answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if not data.endswith(b"\r\n\r\n"):
            return
        body = self._answer(data.split(b" ", 2)[1].decode())
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n\r\n"
        self._transport.write(head.encode() + body)


def others(count: int, said: Connection) -> None:
    """Process of the API server and the pods; says its port, and ends with its parent."""

    async def run() -> None:
        loop, metrics = asyncio.get_running_loop(), page(7).encode()
        pods: list[dict[str, object]] = []

        def answer(target: str) -> bytes:
            if target == "/metrics":
                return metrics
            query = parse_qs(urlsplit(target).query)
            start, limit = int(query.get("continue", ["0"])[0]), int(query["limit"][0])
            more = str(start + limit) if start + limit < count else ""
            found = {"kind": "PodList", "metadata": {"continue": more}, "items": pods[start : start + limit]}
            return json.dumps(found).encode()

        server = await loop.create_server(lambda: Answerer(answer), "0.0.0.0", 0, backlog=4096)
        port = server.sockets[0].getsockname()[1]
        pods += [pod(number, port) for number in range(count)]
        said.send(port)
        await server.serve_forever()

    asyncio.run(run())


async def measure(rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of each question, by the clock and of this process' CPU time."""
    # Here, since the client reads at its import where its configuration is.
    from embedserve_operator.adapter.queries import ROOT, parse_query
    from embedserve_operator.adapter.scraper import Scraper
    from embedserve_operator.adapter.server import MetricsApi
    from embedserve_operator.kube.client import KubeClient

    clock = 0.0
    question = parse_query(f"{ROOT}/namespaces/search/pods/%2A/embedserve_queue_depth", {})
    found, worked = [], []
    async with (
        KubeClient(request_timeout=20) as kube,
        Scraper(cache_seconds=10, timeout=5, monotonic=lambda: clock) as scraper,
    ):
        api = MetricsApi(kube, scraper, lambda: datetime.now(UTC))
        for _ in range(rounds):
            clock += 100
            start, work = time.perf_counter(), time.process_time()
            answer = json.dumps(await api.handle_query(question))
            found.append(time.perf_counter() - start)
            worked.append(time.process_time() - work)
            items = json.loads(answer)["items"]
        start = time.perf_counter()
        await api.handle_query(question)
        again = time.perf_counter() - start
    print(f"{len(items)} pods answered for; asked again within a period: {again:.3f} s")
    return found, worked


def main() -> None:
    """Print times and memory."""
    parser = parser_of(__doc__)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=others, args=(options.pods, there), daemon=True
    )
    process.start()
    port = here.recv()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kubeconfig"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "x",
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
            "clusters": [{"name": "x", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "users": [{"name": "x", "user": {}}],
        }
        file.write_text(json.dumps(config), encoding="utf-8")
        os.environ["KUBECONFIG"] = str(file)
        seconds, worked = asyncio.run(measure(options.rounds))
    process.terminate()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"first {seconds[0]:.2f} s, median {median(seconds):.2f} s, slowest {max(seconds):.2f} s")
    print(f"CPU time of the adapter: median {median(worked):.2f} s")
    print(f"memory at most {memory:.0f} MiB")


if __name__ == "__main__":
    main()
