"""One HTTP/1.1 connection over a raw socket: requests byte by byte, and what comes back."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

# Bound of each single wait, so that what never comes ends in a message; what is right comes far sooner.
WAIT_SECONDS = 20.0
PIECE = 65_536
# Between two looks at something that tells nobody when it changes.
LOOK_SECONDS = 0.01


def wait_for(read: Callable[[], T], holds: Callable[[T], bool], what: str) -> T:
    """Read until it holds; fails with what was read last."""
    ends = time.monotonic() + WAIT_SECONDS
    never = threading.Event()
    while not holds(value := read()):
        assert time.monotonic() < ends, f"{what}: still {value!r} after {WAIT_SECONDS} s"
        never.wait(LOOK_SECONDS)
    return value


@dataclass(frozen=True)
class Answer:
    """headers: names in lower case, in the order they came in."""

    version: str
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def get(self, name: str) -> str | None:
        """Return the value of a header; all of them with commas, if there are several."""
        return ", ".join(value for key, value in self.headers if key == name) or None

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class ConnectionEnd:
    """How a connection ended (`closed` in order, or `reset`), and what came before."""

    how: str
    data: bytes


class HttpConnection:
    """One connection. receive_buffer: bytes that the kernel takes for it, few for a client that does not read."""

    def __init__(self, host: str, port: int, receive_buffer: int | None = None) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        self.socket.settimeout(WAIT_SECONDS)
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        try:
            self.socket.connect((host, port))
        except OSError:
            self.socket.close()
            raise
        self.port: int = self.socket.getsockname()[1]
        self._read = bytearray()
        self._how = ""

    def close(self) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send_until_cut(self, data: bytes) -> None:
        """Send to a server that need not take all of it."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(data)

    def is_readable(self, seconds: float = 0.0) -> bool:
        return bool(self._read) or bool(select.select([self.socket], [], [], seconds)[0])

    def send_until_answered(self, piece: bytes, max_bytes: int) -> int:
        """Send the same again and again until the server says something or ends, at most `max_bytes`; return how many
        bytes were sent."""
        block, sent = memoryview(piece * max(1, PIECE // len(piece))), 0
        while sent < max_bytes:
            readable, writable, _ = select.select([self.socket], [self.socket], [], WAIT_SECONDS)
            assert readable or writable, f"after {sent} bytes the server neither reads nor ends"
            if readable:
                break
            try:
                sent += self.socket.send(block[sent % len(piece) :])
            except (BrokenPipeError, ConnectionResetError):
                break
        return sent

    def read_answer(self, method: str = "POST") -> Answer:
        """Read the next answer, 1xx included. method: of the request, since HEAD has no body in its answer."""
        head = self._read_until(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").strip().split("\r\n")
        version, status = first.split()[:2]
        pairs = [line.partition(":") for line in lines]
        headers = [(name.lower(), value.strip()) for name, _, value in pairs]
        answer = Answer(version, int(status), headers, b"")
        if method == "HEAD" or answer.status < 200 or answer.status in {204, 304}:
            return answer
        return Answer(version, answer.status, headers, self._read_body(answer))

    def read_answers(self, count: int) -> list[Answer]:
        return [self.read_answer() for _ in range(count)]

    def read_to_end(self) -> ConnectionEnd:
        """Read until the server ends the connection."""
        while self._receive():
            pass
        return ConnectionEnd(self._how, bytes(self._read))

    def _read_body(self, answer: Answer) -> bytes:
        if "chunked" in (answer.get("transfer-encoding") or ""):
            assert answer.version == "HTTP/1.1", f"chunks for a client that knows none: {answer}"
            return self._read_chunks()
        length = answer.get("content-length")
        if length is not None:
            return self._read_exactly(int(length))
        assert answer.get("connection") == "close", f"a body without an end: {answer}"
        return self.read_to_end().data

    def _read_chunks(self) -> bytes:
        body = b""
        while size := int(self._read_until(b"\r\n").split(b";")[0], 16):
            body += self._read_exactly(size + 2)[:-2]
        while self._read_until(b"\r\n") != b"\r\n":
            pass
        return body

    def _read_until(self, end: bytes) -> bytes:
        while end not in self._read:
            assert self._receive(), f"{self._how} after {bytes(self._read[:500])!r}"
        found = self._read.index(end) + len(end)
        return self._take(found)

    def _read_exactly(self, count: int) -> bytes:
        while len(self._read) < count:
            assert self._receive(), f"{self._how} after {len(self._read)} of {count} bytes"
        return self._take(count)

    def _take(self, count: int) -> bytes:
        taken = bytes(self._read[:count])
        del self._read[:count]
        return taken

    def _receive(self) -> bool:
        try:
            data = self.socket.recv(PIECE)
        except ConnectionResetError:
            self._how = "reset"
            return False
        except TimeoutError as error:
            seen = bytes(self._read[:500])
            raise AssertionError(f"nothing came for {WAIT_SECONDS} s, and no end, after {seen!r}") from error
        self._how = "" if data else "closed"
        self._read += data
        return bool(data)


def build_request(method: str, path: str, *headers: str, body: bytes | None = None) -> bytes:
    """Build a request; its length is told unless a header frames the body in another way."""
    lines = ["host: a", *headers]
    if body is not None and not any(line.lower().startswith("transfer-encoding") for line in lines):
        lines.append(f"content-length: {len(body)}")
    head = "".join(f"{line}\r\n" for line in (f"{method} {path} HTTP/1.1", *lines))
    return f"{head}\r\n".encode("latin-1") + (body or b"")


def build_post(path: str, content: object, *headers: str) -> bytes:
    """Build a request with a JSON body."""
    body = json.dumps(content).encode()
    return build_request("POST", path, "content-type: application/json", *headers, body=body)


def encode_chunked(body: bytes, size: int = PIECE, trailer: bytes = b"") -> bytes:
    """Encode a body in chunks of `size` bytes. trailer: whole lines."""
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    framed = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return b"%b0\r\n%b\r\n" % (framed, trailer)
