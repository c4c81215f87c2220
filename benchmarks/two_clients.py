"""What a client feels of another that sends a hundred times as much.

    python -m benchmarks.two_clients [--seconds N] [--rate N] [--runs N] [--only WORD] [--pin]

One server process with trained MiniLM, started by the real command. The small client sends `--rate` short texts a
second on time, one a request, whether or not the last was answered; the large one a hundred times as many, twenty a
request, refused ones included. No text is sent twice, since equal ones would run once. Prints for the small client
alone, beside the large one where the server tells them apart, and where it does not: p50 and p95 of its requests, and
where they spent their time, as the headers of the answers say.

Each client is a process of its own. The large one runs at the lowest priority, so that it takes from the server as
little as one machine allows, and the small one at a high one, so that its clock measures the server. `--pin` gives
the server the first half of the CPUs and the clients the other.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.command_line import parser_of
from benchmarks.open_loop import HEADER, Load, Report
from tests.support.models import minilm_folder
from tests.support.monitored_server import start_monitored_server

TEXTS_AT_ONCE, TIMES = 20, 100
# Of a nice value: the large client gives way to the server, the server to the small client's clock.
LARGE_NICE, SMALL_NICE = 19, -10


def start_client(load: Load) -> subprocess.Popen[str]:
    """Start a client in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.open_loop", json.dumps(asdict(load))]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def measure(port: int, rate: float, seconds: float, cpus: Sequence[int], *, beside: bool) -> list[Report]:
    """Return the reports of the small client and, where it is to be `beside`, of the large one."""
    small = Load(port, "small", 1, rate, seconds * 0.8, SMALL_NICE, cpus)
    large = Load(port, "large", TEXTS_AT_ONCE, rate * TIMES / TEXTS_AT_ONCE, seconds, LARGE_NICE, cpus)
    clients = [start_client(large)] if beside else []
    time.sleep(seconds / 10)  # until its requests wait
    clients.insert(0, start_client(small))
    return [Report(**json.loads(client.communicate()[0])) for client in clients]


def format_row(case: str, reports: Sequence[Report], seconds: float) -> str:
    """Write what the small client felt, and what the large one got."""
    small, large = [*reports, Report()][:2]
    marks = statistics.quantiles(small.seconds, n=100)
    stages = " + ".join(f"{statistics.mean(values):.1f}" for values in zip(*small.stages, strict=True))
    return (
        f"{case:12} p50 {marks[49] * 1e3:6.1f} ms, p95 {marks[94] * 1e3:6.1f} ms of {len(small.seconds)} "
        f"({small.refused} refused), tokenizer + queue + engine + all in the server {stages} ms; the large one "
        f"{len(large.seconds) * TEXTS_AT_ONCE / seconds:.0f} texts/s ({large.refused} refused, {large.unsent} unsent), "
        f"{large.cpu_seconds / seconds:.2f} CPU"
    )


CASES: tuple[tuple[str, dict[str, Any], bool], ...] = (
    ("alone", {"client_header": HEADER}, False),
    ("told apart", {"client_header": HEADER}, True),
    ("all as one", {}, True),
)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=20.0)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--only", default="", help="cases whose name has this word")
    parser.add_argument("--pin", action="store_true")
    chosen = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))
    half = len(cpus) // 2 if chosen.pin else 0
    before = f"import os; os.sched_setaffinity(0, {cpus[:half]})" if chosen.pin else ""
    for (case, server, beside), _ in itertools.product(CASES, range(chosen.runs)):
        if chosen.only not in case:
            continue
        with tempfile.TemporaryDirectory() as folder:
            settings = {"server": server, "batching": {"max_batch_tokens": "auto", "max_queue_inputs": 2_000}}
            with start_monitored_server(minilm_folder(), Path(folder), settings, before) as running:
                reports = measure(running.port, chosen.rate, chosen.seconds, cpus[half:], beside=beside)
        print(format_row(case, reports, chosen.seconds), flush=True)


if __name__ == "__main__":
    main()
