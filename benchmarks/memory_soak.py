"""Runs a server under the memory limit that its plan names, with the worst admissible requests for as long as is said.

    python -m benchmarks.memory_soak [--model all-MiniLM-L6-v2] [--layers 6] [--cpus 2] [--seconds 300]
        [--picture docs/pictures/memory-soak.svg]

Prints statuses, kills, and the resident memory at its highest and once the requests have ended. The picture is the
curve of the resident memory. Random weights; the process must be allowed to make cgroups below its own.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.command_line import parser_of
from benchmarks.memory import plan_server
from benchmarks.memory_picture import MemoryCurve, draw
from embedserve_runtime.config import load_config
from embedserve_runtime.memory.sizes import MIB
from embedserve_runtime.telemetry.metrics import resident_bytes
from tests.support.memory_group import limit_memory
from tests.support.model_shapes import CONFIGS
from tests.support.monitored_server import start_monitored_server
from tests.support.random_models import save_random_model
from tests.support.server_process import list_front_ends
from tests.support.worst_mix import build_worst_mix, send_worst_mix

SAMPLE_SECONDS = 0.5
MAX_SAMPLES = 100_000
BODY_BYTES = 16 * MIB
PICTURE = Path("docs/pictures/memory-soak.svg")


@dataclass
class _Samples:
    """Resident bytes of some processes, looked at again and again."""

    pids: list[int]
    found: list[int] = field(default_factory=list)

    @contextmanager
    def take(self) -> Iterator[None]:
        """Take samples for as long as the context lasts."""
        ended = threading.Event()

        def look() -> None:
            while len(self.found) < MAX_SAMPLES and not ended.wait(SAMPLE_SECONDS):
                self.found.append(sum(map(resident_bytes, self.pids)))

        looking = threading.Thread(target=look)
        looking.start()
        try:
            yield
        finally:
            ended.set()
            looking.join()


def soak(model: str, layers: int, cpus: int, seconds: float) -> MemoryCurve:
    """Send the worst requests for so many seconds and print what came of it. Raises AssertionError where the server
    did not answer as it should."""
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "model"
        save_random_model(model, folder, layers=layers)
        settings: dict[str, dict[str, Any]] = {
            "model": {"source": str(folder), "pooling": "mean"},
            "engine": {"threads": cpus, "kind": "onnx"},
            "batching": {"max_batch_tokens": 2_048, "request_timeout_seconds": 3_000.0},
            "server": {"max_body_bytes": BODY_BYTES},
        }
        plan, load = plan_server(folder, load_config(flags=settings), cpus)
        with (
            limit_memory(plan.limit) as group,
            start_monitored_server(folder, Path(parent) / "server", settings, group.enter) as server,
        ):
            pids = [server.pid, *list_front_ends(server.server)]
            ready = sum(map(resident_bytes, pids))
            bodies = build_worst_mix(load.max_length, load.queue_inputs, BODY_BYTES)
            samples, load_before = _Samples(pids), os.getloadavg()[0]
            with samples.take():
                started = time.monotonic()
                statuses = send_worst_mix(server.server.address, bodies, seconds)
                sent = time.monotonic() - started
                server.assert_is_sound()
            after, kills = sum(map(resident_bytes, pids)), group.count_kills()
    curve = MemoryCurve(f"{model}, {layers} layers", samples.found, SAMPLE_SECONDS, plan.total, plan.limit)
    mib = {
        name: count // MIB
        for name, count in {
            "limit": plan.limit,
            "plan": plan.total,
            "ready": ready,
            "highest": max(samples.found),
            "after": after,
        }.items()
    }
    print(
        f"{curve.title}: {sent:.0f} s, statuses {dict(statuses)}, kills {kills}, MiB {mib}, load average "
        f"{load_before:.1f} to {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    assert kills == 0
    assert set(statuses) <= {200, 413, 429}
    return curve


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--model", choices=CONFIGS, default="all-MiniLM-L6-v2")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--picture", type=Path, default=PICTURE)
    given = parser.parse_args()
    given.picture.write_text(draw(soak(given.model, given.layers, given.cpus, given.seconds)))


if __name__ == "__main__":
    main()
