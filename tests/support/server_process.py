"""A server process for tests: started by the real command, followed through its log, ended by signals."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

PROGRAM = "import sys; from embedserve_runtime.commands.cli import main; sys.exit(main())"


HEEDS_SIGINT = ("env", "--default-signal=INT")
"""Begins the command of a process that is sent SIGINT: what a shell starts in the background ignores it, and so do
the tests that run there and all that they start.
"""


@dataclass
class ServerProcess:
    """lines: what the log has said so far, one mapping a line."""

    process: subprocess.Popen[str]
    lines: list[Mapping[str, Any]] = field(default_factory=list)
    address: str = ""
    management: str = ""
    space_address: str = ""

    def wait_for(self, message: str) -> Mapping[str, Any]:
        """Read the log until a line starts with `message`."""
        assert self.process.stderr is not None
        for text in self.process.stderr:
            line = json.loads(text) if text.startswith("{") else {"message": text.rstrip()}
            self.lines.append(line)
            if line["message"].startswith(message):
                return line
        raise AssertionError(f"the log ended without {message!r}: {self.lines}")

    def wait_until_ready(self) -> None:
        line = self.wait_for("ready on ")
        self.address = line["message"].removeprefix("ready on ")
        self.management = line["management"] or ""
        self.space_address = line["pinned"] or ""

    def wait_for_grpc_address(self) -> str:
        """Wait until the server is ready, and return the address of its port for gRPC."""
        started = "listening for gRPC on "
        address: str = self.wait_for(started)["message"].removeprefix(started)
        self.wait_until_ready()
        return address

    def stop(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait_for_exit(self) -> int:
        """Wait for the end, keeping the log."""
        assert self.process.stderr is not None
        for text in self.process.stderr:
            self.lines.append(json.loads(text) if text.startswith("{") else {"message": text.rstrip()})
        return self.process.wait()


@contextmanager
def start_server(
    source: Path | str,
    folder: Path,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    before: str = "",
) -> Iterator[ServerProcess]:
    """Start a process that serves `source`, with settings laid over those of a test; `folder` gets its config file.

    before: what the process runs ahead of the command, to have it find another machine.
    """
    content: dict[str, Any] = {
        "model": {"source": str(source)},
        "server": {"port": 0, "management_port": 0, "endpoint_drain_seconds": 0.0},
        "batching": {"max_batch_tokens": 1024},
        "termination_log": str(folder / "termination"),
    }
    for group, values in (settings or {}).items():
        content[group] = content.get(group, {}) | dict(values)
    (folder / "termination").touch()
    config = folder / "config.yaml"
    config.write_text(json.dumps(content))  # JSON is YAML
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EMBEDSERVE_")}
    command = [*HEEDS_SIGINT, sys.executable, "-c", f"{before}\n{PROGRAM}", "serve", "--config", str(config)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        yield ServerProcess(process)
    finally:
        if process.poll() is None:
            process.kill()
        if process.stderr:
            process.stderr.close()
        process.wait()


def list_front_ends(server: ServerProcess) -> list[int]:
    """Return the process ids of the front ends."""
    children = Path(f"/proc/{server.process.pid}/task").glob("*/children")
    return [int(pid) for file in children for pid in file.read_text().split()]


async def send_signal_under_load(server: ServerProcess, number: signal.Signals) -> list[int]:
    """Send 16 requests at once and a signal once the first has been answered; return the statuses of all."""
    limits = httpx.Limits(max_connections=16)
    async with httpx.AsyncClient(base_url=server.address, limits=limits, timeout=60) as client:
        answered = asyncio.Event()

        async def ask(index: int) -> int:
            answer = await client.post("/embed", json={"inputs": [f"text {index}"] * 8})
            answered.set()
            return answer.status_code

        asking = [asyncio.create_task(ask(index)) for index in range(16)]
        await answered.wait()
        server.stop(number)
        return await asyncio.gather(*asking)
