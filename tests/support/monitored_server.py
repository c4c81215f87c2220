"""A server process as its clients meet it: what it holds, what its page and its log say."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from embedserve_runtime.telemetry.metrics import resident_bytes
from tests.support.http_connection import (
    LOOK_SECONDS,
    WAIT_SECONDS,
    Answer,
    HttpConnection,
    build_post,
    wait_for,
)
from tests.support.server_process import ServerProcess, start_server


@dataclass
class MemoryGrowth:
    """max_bytes: bytes that the process was larger than before, at its largest."""

    before: int
    max_bytes: int = 0


@dataclass
class MonitoredServer:
    """A running server whose log is read all the time, so that it never waits for its reader."""

    server: ServerProcess
    _said: threading.Condition = field(default_factory=threading.Condition)
    _connections: list[HttpConnection] = field(default_factory=list)
    _looked_at: int = 0

    def __post_init__(self) -> None:
        address = urlsplit(self.server.address)
        assert address.hostname
        assert address.port
        self.host, self.port = address.hostname, address.port
        self.reader = threading.Thread(target=self._follow, daemon=True)
        self.reader.start()

    @property
    def pid(self) -> int:
        return self.server.process.pid

    def connect(self, receive_buffer: int | None = None) -> HttpConnection:
        connection = HttpConnection(self.host, self.port, receive_buffer)
        self._connections.append(connection)
        return connection

    def close_connections(self) -> None:
        while self._connections:
            self._connections.pop().close()

    def send_request(self, request: bytes, method: str = "POST") -> Answer:
        """Send a request on a connection of its own, and return its answer."""
        connection = self.connect()
        connection.send(request)
        return connection.read_answer(method)

    def assert_is_sound(self) -> None:
        """Check that a good request is answered, the process lives, and no line of the log is a bug."""
        answer = self.send_request(build_post("/embed", {"inputs": "good"}))
        bugs = self.list_new_errors()
        assert not bugs, bugs
        assert answer.status == 200, answer
        assert self.server.process.poll() is None

    def list_new_errors(self) -> list[Mapping[str, Any]]:
        """List the lines of the log since the last look that no client may bring about."""
        with self._said:
            lines, self._looked_at = self.server.lines[self._looked_at :], len(self.server.lines)
        return [
            line
            for line in lines
            if "exception" in line or line.get("level") in {"error", "critical"} or "Traceback" in str(line)
        ]

    def wait_for_line(self, message: str) -> None:
        def is_said() -> bool:
            return any(str(line["message"]).startswith(message) for line in self.server.lines)

        with self._said:
            assert self._said.wait_for(is_said, WAIT_SECONDS), f"no {message!r} in {self.server.lines}"

    def read_metric(self, name: str, labels: str = "") -> float:
        """Return the sum of all series of a name with these labels."""
        page = httpx.get(f"{self.server.management}/metrics", timeout=WAIT_SECONDS).text
        found = [
            line.rpartition(" ") for line in page.splitlines() if line.startswith((f"{name}{{", f"{name} "))
        ]
        values = [float(value) for series, _, value in found if labels in series]
        assert values or "{" not in labels, f"no {name} with {labels} in {page}"
        return sum(values)

    def count_requests(self, status: int, route: str = "") -> float:
        """Return how many requests have been counted with a status, of one route or of all."""
        place = f'route="{route}",' if route else ""
        return self.read_metric("embedserve_requests_total", f'{place}status="{status}"')

    @contextmanager
    def assert_counts_one(self, status: int, route: str = "") -> Iterator[None]:
        """Check that what is done inside is counted once."""
        before = self.count_requests(status, route)
        yield
        after = wait_for(
            lambda: self.count_requests(status, route),
            lambda value: value > before,
            f"{status} counted of {route or 'all'}",
        )
        assert after == before + 1

    @contextmanager
    def measure_growth(self) -> Iterator[MemoryGrowth]:
        """Measure how much larger the process gets while something is done, looked at all the time."""
        growth, over = MemoryGrowth(resident_bytes(self.pid)), threading.Event()

        def look() -> None:
            while True:
                growth.max_bytes = max(growth.max_bytes, resident_bytes(self.pid) - growth.before)
                if over.wait(LOOK_SECONDS):
                    return

        looking = threading.Thread(target=look)
        looking.start()
        try:
            yield growth
        finally:
            over.set()
            looking.join()

    def has_open(self, connection: HttpConnection) -> bool:
        """Whether the process has accepted a connection and not closed its end."""
        table = Path("/proc/net/tcp6" if ":" in self.host else "/proc/net/tcp").read_text()
        ends = [(line[1], line[2], line[9]) for line in map(str.split, table.splitlines()[1:])]
        own, other = f":{self.port:04X}", f":{connection.port:04X}"
        return any(
            local.endswith(own) and remote.endswith(other) and inode != "0" for local, remote, inode in ends
        )

    def wait_for_exit(self) -> int:
        return self.server.process.wait(WAIT_SECONDS)

    def _follow(self) -> None:
        assert self.server.process.stderr
        for text in self.server.process.stderr:
            line = json.loads(text) if text.startswith("{") else {"message": text.rstrip()}
            with self._said:
                self.server.lines.append(line)
                self._said.notify_all()


@contextmanager
def start_monitored_server(
    source: Path,
    folder: Path,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    before: str = "",
) -> Iterator[MonitoredServer]:
    """Start a server as `start_server` does, and wait until it is ready."""
    folder.mkdir(exist_ok=True)
    with start_server(source, folder, settings, before) as server:
        server.wait_until_ready()
        found = MonitoredServer(server)
        try:
            yield found
        finally:
            found.close_connections()
            with contextlib.suppress(ProcessLookupError):
                server.process.kill()
            found.reader.join()
