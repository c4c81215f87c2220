"""Compares the plan of a server's memory with what the server takes under the worst admissible requests.

    python -m benchmarks.memory [NAME ...] [--layers 2] [--cpus 2] [--rounds 2]

Models have the shape of well-known ones with fewer layers, whose weights and plan are those of the fewer layers. The
peak is the greatest resident memory of all processes of the server (VmHWM of /proc/PID/status).
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.command_line import parser_of
from embedserve_runtime.commands.inspect_model import format_size
from embedserve_runtime.config import RuntimeConfig, load_config
from embedserve_runtime.loading.model_sizes import find_model_sizes
from embedserve_runtime.memory.load import describe_load
from embedserve_runtime.memory.plan import MemoryPlan, ServingLoad, plan_memory
from embedserve_runtime.model.reading import read_card
from embedserve_runtime.model.tensors import ModelTensors
from tests.support.model_shapes import CONFIGS
from tests.support.monitored_server import start_monitored_server
from tests.support.random_models import save_random_model
from tests.support.server_process import list_front_ends
from tests.support.worst_mix import build_worst_mix, send_worst_mix


def plan_server(folder: Path, config: RuntimeConfig, cpus: int) -> tuple[MemoryPlan, ServingLoad]:
    """Return the plan of a server of a folder, and what it is for."""
    card = read_card(folder, "local", config.model)
    sizes, engine, _ = find_model_sizes(card, ModelTensors(folder), config)
    load = describe_load(config, card.max_length, engine, cpus)
    return plan_memory(sizes, load), load


def read_peak(pid: int) -> int:
    """Return the greatest resident memory that a process has had, in bytes."""
    found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def measure(name: str, layers: int, cpus: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "model"
        save_random_model(name, folder, layers=layers)
        settings: dict[str, dict[str, Any]] = {
            "model": {"source": str(folder), "pooling": "mean"},
            "engine": {"threads": cpus, "kind": "onnx"},
        }
        plan, load = plan_server(folder, load_config(flags=settings), cpus)
        bounds = {"max_batch_tokens": load.batch_tokens, "max_queue_inputs": load.queue_inputs}
        settings |= {"batching": bounds, "server": {"max_pending_bytes": load.pending_bytes}}
        with start_monitored_server(folder, Path(parent) / "server", settings) as server:
            bodies = build_worst_mix(load.max_length, load.queue_inputs, 16 * 2**20)
            statuses = send_worst_mix(server.server.address, bodies, rounds)
            peak = sum(map(read_peak, (server.pid, *list_front_ends(server.server))))
        parts = ", ".join(f"{part.name} {format_size(part.size)}" for part in plan.parts if part.size)
        print(
            f"| {name}, {layers} layers | {load.max_length} | {load.batch_tokens} | {format_size(plan.total)} | "
            f"{format_size(peak)} | {plan.total / peak:.2f} | {dict(statuses)} | {parts} |",
            flush=True,
        )


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("names", nargs="*", default=[*CONFIGS], metavar="NAME")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    print("| model | longest text | budget | planned | measured | planned / measured | statuses | parts |")
    print("|---|---|---|---|---|---|---|---|")
    for name in given.names:
        measure(name, given.layers, given.cpus, given.rounds)


if __name__ == "__main__":
    main()
