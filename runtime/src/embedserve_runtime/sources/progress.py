"""Reports the progress of a fetch: counted by the threads that fetch, logged and, where wanted, served over HTTP."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from embedserve_runtime.listening import open_bound_socket
from embedserve_runtime.progress import WorkState

log = logging.getLogger(__name__)
EVERY_S = 5.0
WINDOW_S = 20.0


@dataclass(frozen=True, slots=True)
class ProgressState:
    """The progress of a fetch.

    bytes_done: of bytes_total, files that were there before included; bytes_per_second: over the last 20 s;
    seconds_remaining: None where the rate is not known yet. phase: a human-readable name of what is being done.
    """

    phase: str = "resolving"
    bytes_done: int = 0
    bytes_total: int = 0
    bytes_per_second: int = 0
    seconds_remaining: int | None = None

    def as_json(self) -> dict[str, object]:
        """Return the state in the spelling of the resource's status: bytesDone, bytesTotal, bytesPerSecond,
        secondsRemaining."""
        return {_to_camel_case(name): value for name, value in asdict(self).items()}


class Progress:
    """Counts the bytes of a fetch. Safe to use from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._phase = ProgressState().phase
        self._done = 0
        self._total = 0
        self._samples: deque[tuple[float, int]] = deque([(clock(), 0)])
        self._arrived = 0

    def enter(self, phase: str) -> None:
        with self._lock:
            self._phase = phase
        log.info(phase, extra={"progress": self.get_state().as_json()})

    def add_expected(self, count: int) -> None:
        """Count bytes that belong to the model."""
        with self._lock:
            self._total += count

    def add_existing(self, count: int) -> None:
        """Count bytes that were there already; negative where they have to be fetched again."""
        with self._lock:
            self._done += count

    def add_received(self, count: int) -> None:
        """Count bytes that have arrived."""
        with self._lock:
            self._done += count
            self._arrived += count

    def get_work_state(self) -> WorkState:
        """Return the state as what displays any work takes it."""
        state = self.get_state()
        return WorkState(
            state.phase,
            state.bytes_done,
            state.bytes_total or None,
            "bytes",
            state.bytes_per_second,
            state.seconds_remaining,
        )

    def get_state(self) -> ProgressState:
        now = self._clock()
        with self._lock:
            if now > self._samples[-1][0]:
                self._samples.append((now, self._arrived))
            while len(self._samples) > 2 and now - self._samples[0][0] > WINDOW_S:
                self._samples.popleft()
            (since, before), (until, after) = self._samples[0], self._samples[-1]
            rate = (after - before) / (until - since) if until > since else 0.0
            left = max(0, self._total - self._done)
            return ProgressState(
                self._phase, self._done, self._total, int(rate), round(left / rate) if rate > 0 else None
            )

    @contextmanager
    def log_periodically(self, every_s: float = EVERY_S) -> Iterator[None]:
        """Write a line to the log that often, with the state in its field `progress`."""
        ended = threading.Event()

        def log_state() -> None:
            while not ended.wait(every_s):
                state = self.get_state()
                log.info(state.phase, extra={"progress": state.as_json()})

        teller = threading.Thread(target=log_state, name="fetch-progress", daemon=True)
        teller.start()
        try:
            yield
        finally:
            ended.set()
            teller.join()

    @contextmanager
    def serve(self, host: str, port: int | None) -> Iterator[int | None]:
        """Serve the state as `GET /progress` within the context, and yield the port.

        port: 0 takes a free one; None serves nothing. Yields None where nothing is served or the port is taken.
        """
        if port is None:
            yield None
            return
        try:
            server = _Server(open_bound_socket(host, port), self)
        except OSError as error:
            log.warning("progress is not served", extra={"port": port, "error": str(error)})
            yield None
            return
        thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="progress-port", daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, bound: socket.socket, progress: Progress) -> None:
        self.progress = progress
        super().__init__(bound.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = bound
        self.server_activate()


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 5

    def do_GET(self) -> None:
        is_progress = self.path == "/progress"
        body = json.dumps(self.server.progress.get_state().as_json()).encode() if is_progress else b""
        self.send_response(200 if is_progress else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing: probes are not worth a line."""


def _to_camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.title() for part in rest)
