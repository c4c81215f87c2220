"""A server process as its clients meet it: raw sockets, what the process holds, what its page and its log say."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from embedserve_runtime.telemetry.metrics import resident_bytes
from tests.runtime.serve.live import Live, live

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
        """The value of a header; all of them with commas, if there are several."""
        return ", ".join(value for key, value in self.headers if key == name) or None

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Ending:
    """How a connection ended (`closed` in order, or `reset`), and what came before."""

    how: str
    data: bytes


class Wire:
    """One connection. receive_buffer: bytes that the kernel takes for it, few for a client that does not read."""

    def __init__(self, host: str, port: int, receive_buffer: int | None = None) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        self.socket.settimeout(WAIT_SECONDS)
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.connect((host, port))
        self.port: int = self.socket.getsockname()[1]
        self._read = bytearray()
        self._how = ""

    def close(self) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send_or_be_cut(self, data: bytes) -> None:
        """For a server that need not take all of it."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(data)

    def is_readable(self, seconds: float = 0.0) -> bool:
        return bool(self._read) or bool(select.select([self.socket], [], [], seconds)[0])

    def flood(self, piece: bytes, most: int) -> int:
        """Send the same again and again until the server says something or ends, `most` bytes in all; bytes sent."""
        block, sent = memoryview(piece * max(1, PIECE // len(piece))), 0
        while sent < most:
            readable, writable, _ = select.select([self.socket], [self.socket], [], WAIT_SECONDS)
            assert readable or writable, f"after {sent} bytes the server neither reads nor ends"
            if readable:
                break
            try:
                sent += self.socket.send(block[sent % len(piece) :])
            except (BrokenPipeError, ConnectionResetError):
                break
        return sent

    def answer(self, method: str = "POST") -> Answer:
        """The next answer, 1xx included. method: of the request, since HEAD has no body in its answer."""
        head = self._until(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").strip().split("\r\n")
        version, status = first.split()[:2]
        pairs = [line.partition(":") for line in lines]
        headers = [(name.lower(), value.strip()) for name, _, value in pairs]
        answer = Answer(version, int(status), headers, b"")
        if method == "HEAD" or answer.status < 200 or answer.status in {204, 304}:
            return answer
        return Answer(version, answer.status, headers, self._body(answer))

    def answers(self, count: int) -> list[Answer]:
        return [self.answer() for _ in range(count)]

    def ending(self) -> Ending:
        """Read until the server ends the connection."""
        while self._receive():
            pass
        return Ending(self._how, bytes(self._read))

    def _body(self, answer: Answer) -> bytes:
        if "chunked" in (answer.get("transfer-encoding") or ""):
            assert answer.version == "HTTP/1.1", f"chunks for a client that knows none: {answer}"
            return self._chunks()
        length = answer.get("content-length")
        if length is not None:
            return self._exactly(int(length))
        assert answer.get("connection") == "close", f"a body without an end: {answer}"
        return self.ending().data

    def _chunks(self) -> bytes:
        body = b""
        while size := int(self._until(b"\r\n").split(b";")[0], 16):
            body += self._exactly(size + 2)[:-2]
        while self._until(b"\r\n") != b"\r\n":
            pass
        return body

    def _until(self, end: bytes) -> bytes:
        while end not in self._read:
            assert self._receive(), f"{self._how} after {bytes(self._read[:500])!r}"
        found = self._read.index(end) + len(end)
        return self._take(found)

    def _exactly(self, count: int) -> bytes:
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


@dataclass
class Growth:
    """most: bytes that the process was larger than before, at its largest."""

    before: int
    most: int = 0


@dataclass
class Target:
    """A running server whose log is read all the time, so that it never waits for its reader."""

    live: Live
    _said: threading.Condition = field(default_factory=threading.Condition)
    _wires: list[Wire] = field(default_factory=list)
    _looked_at: int = 0

    def __post_init__(self) -> None:
        address = urlsplit(self.live.address)
        assert address.hostname
        assert address.port
        self.host, self.port = address.hostname, address.port
        self.reader = threading.Thread(target=self._follow, daemon=True)
        self.reader.start()

    @property
    def pid(self) -> int:
        return self.live.process.pid

    def wire(self, receive_buffer: int | None = None) -> Wire:
        wire = Wire(self.host, self.port, receive_buffer)
        self._wires.append(wire)
        return wire

    def close_wires(self) -> None:
        while self._wires:
            self._wires.pop().close()

    def ask(self, request: bytes, method: str = "POST") -> Answer:
        """One request on a connection of its own."""
        wire = self.wire()
        wire.send(request)
        return wire.answer(method)

    def check_good(self) -> None:
        """A good request is answered, the process lives, and no line of the log is a bug."""
        answer = self.ask(post("/embed", {"inputs": "good"}))
        bugs = self.new_bugs()
        assert not bugs, bugs
        assert answer.status == 200, answer
        assert self.live.process.poll() is None

    def new_bugs(self) -> list[Mapping[str, Any]]:
        """Lines of the log that no client may bring about, since the last look."""
        with self._said:
            lines, self._looked_at = self.live.lines[self._looked_at :], len(self.live.lines)
        return [
            line
            for line in lines
            if "exception" in line or line.get("level") in {"error", "critical"} or "Traceback" in str(line)
        ]

    def wait_for_line(self, message: str) -> None:
        def is_said() -> bool:
            return any(str(line["message"]).startswith(message) for line in self.live.lines)

        with self._said:
            assert self._said.wait_for(is_said, WAIT_SECONDS), f"no {message!r} in {self.live.lines}"

    def metric(self, name: str, labels: str = "") -> float:
        """The sum of all series of a name with these labels."""
        page = httpx.get(f"{self.live.management}/metrics", timeout=WAIT_SECONDS).text
        found = [
            line.rpartition(" ") for line in page.splitlines() if line.startswith((f"{name}{{", f"{name} "))
        ]
        values = [float(value) for series, _, value in found if labels in series]
        assert values or "{" not in labels, f"no {name} with {labels} in {page}"
        return sum(values)

    def requests(self, status: int, route: str = "") -> float:
        """Requests that have been counted with a status, of one route or of all."""
        place = f'route="{route}",' if route else ""
        return self.metric("embedserve_requests_total", f'{place}status="{status}"')

    @contextmanager
    def counts_one(self, status: int, route: str = "") -> Iterator[None]:
        """What is done inside is counted once."""
        before = self.requests(status, route)
        yield
        after = wait_for(
            lambda: self.requests(status, route),
            lambda value: value > before,
            f"{status} counted of {route or 'all'}",
        )
        assert after == before + 1

    @contextmanager
    def growth(self) -> Iterator[Growth]:
        """How much larger the process gets while something is done, looked at all the time."""
        growth, over = Growth(resident_bytes(self.pid)), threading.Event()

        def look() -> None:
            while True:
                growth.most = max(growth.most, resident_bytes(self.pid) - growth.before)
                if over.wait(LOOK_SECONDS):
                    return

        looking = threading.Thread(target=look)
        looking.start()
        try:
            yield growth
        finally:
            over.set()
            looking.join()

    def holds(self, wire: Wire) -> bool:
        """The process has the other end of a connection, which it has accepted and not closed."""
        table = Path("/proc/net/tcp6" if ":" in self.host else "/proc/net/tcp").read_text()
        ends = [(line[1], line[2], line[9]) for line in map(str.split, table.splitlines()[1:])]
        own, other = f":{self.port:04X}", f":{wire.port:04X}"
        return any(
            local.endswith(own) and remote.endswith(other) and inode != "0" for local, remote, inode in ends
        )

    def exit_code(self) -> int:
        return self.live.process.wait(WAIT_SECONDS)

    def _follow(self) -> None:
        assert self.live.process.stderr
        for text in self.live.process.stderr:
            line = json.loads(text) if text.startswith("{") else {"message": text.rstrip()}
            with self._said:
                self.live.lines.append(line)
                self._said.notify_all()


@contextmanager
def target(
    source: Path,
    folder: Path,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    before: str = "",
) -> Iterator[Target]:
    """A server as `live` starts it, ready, that has answered something."""
    folder.mkdir(exist_ok=True)
    with live(source, folder, settings, before) as server:
        server.wait_until_ready()
        found = Target(server)
        try:
            yield found
        finally:
            found.close_wires()
            with contextlib.suppress(ProcessLookupError):
                server.process.kill()
            found.reader.join()


def request(method: str, path: str, *headers: str, body: bytes | None = None) -> bytes:
    """One request; its length is told unless a header frames the body in another way."""
    lines = ["host: a", *headers]
    if body is not None and not any(line.lower().startswith("transfer-encoding") for line in lines):
        lines.append(f"content-length: {len(body)}")
    head = "".join(f"{line}\r\n" for line in (f"{method} {path} HTTP/1.1", *lines))
    return f"{head}\r\n".encode("latin-1") + (body or b"")


def post(path: str, content: object, *headers: str) -> bytes:
    """A request with a JSON body."""
    body = json.dumps(content).encode()
    return request("POST", path, "content-type: application/json", *headers, body=body)


def chunked(body: bytes, size: int = PIECE, trailer: bytes = b"") -> bytes:
    """trailer: whole lines."""
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    framed = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return b"%b0\r\n%b\r\n" % (framed, trailer)
