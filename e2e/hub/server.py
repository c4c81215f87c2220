"""The hub on a port: in a thread of a test, or in a pod."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self

from e2e.hub.access import Access
from e2e.hub.answers import Answer, Content, Hub, Question
from e2e.hub.faults import Fault, FaultKind, Faults
from e2e.hub.repositories import Repositories

FAULTS_PATH = "/_faults"
REQUESTS_PATH = "/_requests"
CHUNK_BYTES = 256 * 1024
SLOW_STEPS_PER_SECOND = 10


@dataclass(frozen=True)
class SeenRequest:
    method: str
    path: str
    status: int
    sent_bytes: int


class HubServer:
    """Listens from construction on, answers between ``start`` and ``close`` (or inside ``with``).

    ``faults`` may be changed at any time; from outside of the process by POST and DELETE of ``/_faults``.
    """

    def __init__(
        self,
        root: Path,
        access: Access | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.faults = Faults()
        self.hub = Hub(Repositories(root), access or Access())
        self.stopping = threading.Event()
        self._requests: list[SeenRequest] = []
        self._server = _Server((host, port), self)
        self._scheme = "http" if tls is None else "https"
        if tls is not None:
            # Without the handshake here each handler makes it in its own thread.
            self._server.socket = tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self.serve, name="hub", daemon=True)

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        return f"{self._scheme}://{host!s}:{port}"

    @property
    def requests(self) -> tuple[SeenRequest, ...]:
        return tuple(self._requests)

    def note(self, request: SeenRequest) -> None:
        self._requests.append(request)

    def serve(self) -> None:
        self._server.serve_forever(poll_interval=0.05)

    def start(self) -> Self:
        self._thread.start()
        return self

    def close(self) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # Handlers of kept-alive connections end with their clients; close() must not wait for those.
    block_on_close = False

    def __init__(self, address: tuple[str, int], owner: HubServer) -> None:
        self.owner = owner
        super().__init__(address, _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "embedserve-hub"
    server: _Server

    def do_GET(self) -> None:
        if self.path == REQUESTS_PATH:
            self._send(_json([vars(request) for request in self.server.owner.requests]))
        else:
            self._answer_question()

    def do_HEAD(self) -> None:
        self._answer_question()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path != FAULTS_PATH:
            self._send(Answer(404))
            return
        try:
            fields = json.loads(body)
            fault = Fault(**{**fields, "kind": FaultKind(fields["kind"])})
        except (ValueError, KeyError, TypeError) as error:
            self._send(Answer(400, body=str(error).encode()))
            return
        self.server.owner.faults.add(fault)
        self._send(Answer(204))

    def do_DELETE(self) -> None:
        if self.path == FAULTS_PATH:
            self.server.owner.faults.clear()
        self._send(Answer(204 if self.path == FAULTS_PATH else 404))

    def handle(self) -> None:
        """A client that does not trust the certificate, or is killed, is no error of the server."""
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            super().handle()

    def log_message(self, format: str, *arguments: object) -> None:
        """Requests are kept in ``HubServer.requests`` instead of on standard error."""

    def _answer_question(self) -> None:
        owner = self.server.owner
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        bearer = token if scheme.lower() == "bearer" else None
        answer = owner.hub.answer(Question(self.path, bearer, self.headers.get("Range")))
        has_content = self.command == "GET" and isinstance(answer.body, Content)
        fault = owner.faults.take(self.path, has_content=has_content)
        if fault is not None and fault.kind is FaultKind.UNBOUNDED_RANGE:
            start = self.headers.get("Range", "bytes=0-").rpartition("-")[0]
            answer = owner.hub.answer(Question(self.path, bearer, f"{start}-"))
        if fault is not None and fault.kind is FaultKind.RATE_LIMIT:
            answer = Answer(429, {"Retry-After": str(fault.amount)}, b"We had to rate limit you.")
        if fault is not None and fault.kind is FaultKind.SERVER_ERROR:
            answer = Answer(
                503, {"Content-Type": "text/html"}, b"<html>503 Service Temporarily Unavailable</html>"
            )
        self._send(answer, fault)

    def _send(self, answer: Answer, fault: Fault | None = None) -> None:
        length = answer.body.end - answer.body.start if isinstance(answer.body, Content) else len(answer.body)
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        sent = 0
        if self.command != "HEAD":
            sent = self._send_body(answer.body, fault)
            # The promised length was not kept: the connection is of no more use.
            self.close_connection = self.close_connection or sent < length
        self.server.owner.note(SeenRequest(self.command, self.path, answer.status, sent))

    def _send_body(self, body: bytes | Content, fault: Fault | None) -> int:
        if isinstance(body, bytes):
            self.wfile.write(body)
            return len(body)
        try:
            return self._send_content(body, fault)
        except (BrokenPipeError, ConnectionResetError):
            return 0

    def _send_content(self, content: Content, fault: Fault | None) -> int:
        end, step, pause_s = content.end, CHUNK_BYTES, 0.0
        if fault is not None and fault.kind is FaultKind.BROKEN:
            end = min(end, content.start + fault.amount)
        if fault is not None and fault.kind is FaultKind.SLOW:
            step, pause_s = max(1, fault.amount // SLOW_STEPS_PER_SECOND), 1 / SLOW_STEPS_PER_SECOND
        position = content.start
        wrong = None
        if fault is not None and fault.kind is FaultKind.CORRUPT:
            wrong = min(position + fault.amount, end - 1)
        with content.file.path.open("rb") as stream:
            stream.seek(position)
            while position < end:
                chunk = stream.read(min(step, end - position))
                if wrong is not None and position <= wrong < position + len(chunk):
                    chunk = _with_another_byte(chunk, wrong - position)
                self.wfile.write(chunk)
                position += len(chunk)
                if pause_s and self.server.owner.stopping.wait(pause_s):
                    break
        return position - content.start


def _with_another_byte(chunk: bytes, place: int) -> bytes:
    return chunk[:place] + bytes([chunk[place] ^ 0xFF]) + chunk[place + 1 :]


def _json(value: object) -> Answer:
    return Answer(200, {"Content-Type": "application/json"}, json.dumps(value).encode())
