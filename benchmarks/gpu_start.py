"""How long a server on a GPU takes from its process's start until it is ready, first and with what a start has kept.

    python -m benchmarks.gpu_start [--starts 3] [--workers auto]

BERT-base shape with random weights, bfloat16. All starts share one model store; each has a temporary folder of its own,
as each pod has. The first one compiles all kernels, the later ones take them from the store. Prints the seconds, and
what the log says at which second. Needs torch with CUDA.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import torch

from benchmarks.command_line import parser_of
from benchmarks.gpu_serving import info, save, served


def timeline(log: Sequence[str]) -> list[str]:
    """The log's messages with the seconds since the first one."""
    lines = [json.loads(line) for line in log if line.startswith("{")]
    times = [datetime.fromisoformat(line["time"]) for line in lines]
    return [
        f"{(time - times[0]).total_seconds():6.1f}  {line['message']}"
        for time, line in zip(times, lines, strict=True)
    ]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--workers", default="auto", help="of HTTP, as --http-workers takes them")
    options = parser.parse_args()
    print(torch.cuda.get_device_name(), torch.__version__, f"{os.cpu_count()} CPUs", flush=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "model"
        save(folder)
        # A folder that it names is used in place of the store.
        environment = {name: value for name, value in os.environ.items() if name != "TRITON_CACHE_DIR"}
        environment["EMBEDSERVE_MODEL__STORE"] = str(Path(name) / "store")
        for number in range(options.starts):
            temporary = Path(name) / f"temporary-{number}"
            temporary.mkdir()
            with served(folder, port, options.workers, {**environment, "TMPDIR": str(temporary)}) as server:
                print(f"start {number + 1}: ready after {server.ready:.1f} s; {info(port)}", flush=True)
                print("\n".join(timeline(server.log)), flush=True)


if __name__ == "__main__":
    main()
