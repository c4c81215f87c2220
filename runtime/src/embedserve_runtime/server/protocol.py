"""uvicorn's httptools protocol with the bounds and corrections that it lacks.

Each override names what it is for. Without them (uvicorn 0.54): a head has no limit, neither in bytes nor in time
(https://github.com/Kludex/uvicorn/issues/157); trailers of a chunked body become request headers, `authorization`
included (https://github.com/Kludex/uvicorn/issues/1596); the body of a request that offers `Upgrade: h2c` is lost
(https://github.com/Kludex/uvicorn/issues/2722); a connection on which nothing is ever sent, or whose answer is never
read, stays for ever (https://github.com/Kludex/uvicorn/pull/1192); of several requests sent ahead only the last learns
that the client is gone; and an answer before the end of a body is lost where the client goes on sending it.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict, deque
from typing import Any, Protocol, cast

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from embedserve_runtime.server import limits
from embedserve_runtime.server.answer_transport import AnswerTransport

_FRAMING_HEADERS = frozenset({b"content-length", b"transfer-encoding"})
_SUPPORTED_VERSIONS = frozenset({"1.0", "1.1"})
BAD_REQUEST, REQUEST_TIMEOUT, HEAD_TOO_LARGE, SERVICE_UNAVAILABLE = 400, 408, 431, 503
_EXPLANATIONS = {
    BAD_REQUEST: b"This is not a well-formed HTTP request.",
    REQUEST_TIMEOUT: b"The request did not arrive in time.",
    HEAD_TOO_LARGE: b"The request line and headers are larger than %d bytes, or there are more than %d headers."
    % (limits.MAX_HEAD_BYTES, limits.MAX_HEADERS),
    SERVICE_UNAVAILABLE: b"This server has no connection left; try again.",
}
"""Bodies of refusals that are sent before a route is known, whose API would decide the shape of its errors."""


class ConnectionObserver(Protocol):
    """Observes connections, and bytes that were refused before they became a request."""

    def connection_opened(self) -> None: ...
    def connection_closed(self) -> None: ...

    def refused(self, status: int) -> None:
        """Count a refused request. `status` is the HTTP status that the client got."""
        ...


class IdleConnections:
    """The connections of a server without a request in work, in the order in which they have to make room."""

    def __init__(self) -> None:
        self._unused: OrderedDict[BoundedHttpProtocol, None] = OrderedDict()
        self._used: OrderedDict[BoundedHttpProtocol, None] = OrderedDict()

    def add(self, connection: BoundedHttpProtocol, *, is_used: bool) -> None:
        """Add a connection. is_used: whether it has had a request, as those of a client's pool have."""
        (self._used if is_used else self._unused)[connection] = None

    def discard(self, connection: BoundedHttpProtocol) -> None:
        self._used.pop(connection, None)
        self._unused.pop(connection, None)

    def pop(self) -> BoundedHttpProtocol | None:
        """Remove and return the connection that is needed least: the oldest that has never had a request, otherwise the
        one that has been idle longest."""
        connections = self._unused or self._used
        return connections.popitem(last=False)[0] if connections else None


class ServerConfig(uvicorn.Config):
    """uvicorn's configuration, and what the connections of a server share."""

    observer: ConnectionObserver
    idle_connections: IdleConnections


def _to_origin_form(target: bytes) -> bytes:
    """Return path and query of a target in absolute form, `http://host?query`, whose path may be empty (RFC 9112,
    section 3.2.2); any other target as it is."""
    url = httptools.parse_url(target)
    if not url.schema:
        return target
    path = url.path or b"/"
    return path + b"?" + url.query if url.query else path


class BoundedHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol for one connection, with bounds."""

    config: ServerConfig
    # Before the first request; uvicorn's annotations leave that out.
    cycle: RequestResponseCycle | None  # type: ignore[assignment]

    def __init__(
        self,
        config: ServerConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._in_head = False
        self._in_body = False
        self._has_had_request = False
        self._reads_no_more = False
        self._linger_bytes = 0
        self._max_linger_bytes = math.inf
        self._unanswered: deque[RequestResponseCycle] = deque()
        self._replays_head = False
        self._unparsed_bytes = 0
        self._body_bytes = 0
        self._discarded_bytes = 0
        self._read_deadline = self.loop.time() + limits.IDLE_SECONDS
        self._unwritten_bytes = 0
        self._write_deadline = math.inf

    # -- from the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._answers = AnswerTransport(transport, self._close_after_answer)
        self.config.observer.connection_opened()
        if len(self.connections) > limits.MAX_CONNECTIONS:
            # Clients that only connect would otherwise keep out those that ask.
            idle = self.config.idle_connections.pop()
            if idle is None:
                self._refuse(SERVICE_UNAVAILABLE)
                return
            idle.transport.close()
        self.config.idle_connections.add(self, is_used=False)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.config.idle_connections.discard(self)
        self.pipeline.clear()
        for cycle in self._unanswered:
            cycle.disconnected = True
            cycle.message_event.set()
        # uvicorn leaves the timer where the connection was reset, and with it all that the connection holds for as
        # long as the timer runs.
        self._unset_keepalive_if_required()
        self.config.observer.connection_closed()

    def data_received(self, data: bytes) -> None:
        if self._reads_no_more:
            self._linger_bytes += len(data)
            if self._linger_bytes > self._max_linger_bytes:
                self.transport.abort()
            return
        self._unparsed_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self._refuse(HEAD_TOO_LARGE if self._in_head and self._is_head_too_large() else BAD_REQUEST)
        else:
            self._check_unparsed_bytes()
            if self._is_idle() and math.isinf(self._read_deadline):
                # Line ends between two requests stop uvicorn's timer and begin no request.
                self._read_deadline = self.loop.time() + limits.IDLE_SECONDS

    def _is_idle(self) -> bool:
        """Return whether no request is being handled, and none has begun to arrive."""
        return not self._in_head and (self.cycle is None or self.cycle.response_complete)

    # -- from the parser

    def on_message_begin(self) -> None:
        if self._replays_head:
            return
        super().on_message_begin()
        self._in_head, self._has_had_request = True, True
        self._unparsed_bytes = self._body_bytes = self._discarded_bytes = 0
        self._read_deadline = self.loop.time() + limits.HEAD_SECONDS

    def on_url(self, url: bytes) -> None:
        if not self._replays_head:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Drop trailers: a key or an identity that comes after the body was not there when it was checked."""
        if self._in_head and not self._replays_head:
            super().on_header(name, value)
            if len(self.headers) > limits.MAX_HEADERS:
                # At once: a single read may bring tens of thousands. Answered as in `on_headers_complete`.
                raise ValueError("too many headers")

    def on_headers_complete(self) -> None:
        if self._replays_head:
            self._replays_head = False
            return
        # Becomes an HttpParserError, which `data_received` answers.
        if self._is_head_too_large():
            raise ValueError("the head is too large")
        if not self._is_head_valid():
            raise ValueError("the head is malformed")
        # Not before: whoever sends the beginning of a head asks for nothing yet.
        self.config.idle_connections.discard(self)
        if self.expect_100_continue:
            # Of HTTP/1.0 the offer is ignored: such a client takes a 100 for its answer (RFC 9110, section 10.1.1).
            self.expect_100_continue = self.parser.get_http_version() != "1.0"
        if not self.url.startswith(b"/"):
            self.url = _to_origin_form(self.url)
        super().on_headers_complete()
        if self.cycle is not None:
            self.cycle.transport = cast(asyncio.Transport, self._answers)
            self._unanswered.append(self.cycle)
        self._in_head, self._in_body = False, True
        self._unparsed_bytes = 0
        self._read_deadline = math.inf

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)
        if self.cycle is not None and self.cycle.response_complete:
            self._discarded_bytes += len(body)
            if self._discarded_bytes > limits.MAX_DISCARDED_BYTES and not self._reads_no_more:
                self._close_lingering()

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # the parser stops before the body; `_ignore_upgrade` goes on with another one
        super().on_message_complete()
        self._in_body = False
        self._unparsed_bytes = 0
        self._read_deadline = math.inf

    def on_response_complete(self) -> None:
        self._answers.end_answer()
        self._unanswered.popleft()
        super().on_response_complete()
        # `check_deadlines` looks after idle connections; a timer for each answer costs more than all of its looks.
        self._unset_keepalive_if_required()
        self._read_deadline = self.loop.time() + limits.IDLE_SECONDS
        if self._is_idle() and not self.transport.is_closing():
            self.config.idle_connections.add(self, is_used=True)

    # -- bounds

    def _is_head_too_large(self) -> bool:
        if len(self.headers) > limits.MAX_HEADERS:
            return True
        headers = sum(len(name) + len(value) + 4 for name, value in self.headers)
        return max(self._unparsed_bytes, len(self.url) + headers) > limits.MAX_HEAD_BYTES

    def _is_head_valid(self) -> bool:
        """Return whether a head that httptools accepts is valid by RFC 9112, and has one key at most.

        RFC 9112 refuses a request without exactly one Host (section 3.2), and transfer codings that would stay in
        the body (section 6.1). Of several keys one would count here, and another in a proxy before this server.
        """
        version = self.parser.get_http_version()
        hosts = codings = keys = 0
        for name, value in self.headers:
            if name == b"host":
                hosts += 1
            elif name == b"authorization":
                keys += 1
            elif name == b"transfer-encoding":
                codings += 1
                if value.strip().lower() != b"chunked":
                    return False
        return (
            version in _SUPPORTED_VERSIONS
            and codings <= 1
            and keys <= 1
            and (hosts == 1 or (hosts == 0 and version == "1.0"))
        )

    def _check_unparsed_bytes(self) -> None:
        """Refuse a request whose head, chunk header or trailer does not end: the parser keeps all bytes of it."""
        overhead, allowed = self._unparsed_bytes, limits.MAX_HEAD_BYTES
        if self._in_body:
            overhead -= self._body_bytes
            allowed += limits.MAX_OVERHEAD_PER_BODY_BYTE * self._body_bytes
        if overhead > allowed:
            self._refuse(HEAD_TOO_LARGE if self._in_head else BAD_REQUEST)

    def check_deadlines(self, now: float) -> None:
        """End the connection where the client takes too long; `now` is a time of the event loop."""
        if self._write_deadline_passed(now):
            self.transport.abort()
        elif self.transport.is_closing() or now < self._read_deadline:
            return
        elif self._in_head:
            self._refuse(REQUEST_TIMEOUT)
        elif self._is_idle():
            self.transport.close()

    def _write_deadline_passed(self, now: float) -> bool:
        """Return whether the client has read nothing for `WRITE_SECONDS` while bytes wait to be sent; each byte that it
        takes moves the deadline."""
        unwritten = self.transport.get_write_buffer_size()
        if unwritten == 0:
            self._write_deadline = math.inf
        elif unwritten != self._unwritten_bytes or math.isinf(self._write_deadline):
            self._write_deadline = now + limits.WRITE_SECONDS
        self._unwritten_bytes = unwritten
        return now >= self._write_deadline

    # -- the end

    def shutdown(self) -> None:
        """Accept no request after the current one; a connection that is new may still send its first."""
        if not self._is_idle():
            if self.cycle is not None:
                self.cycle.keep_alive = False
        elif self._has_had_request:
            # What has arrived by now is read first, so that no connection with a request on it counts as idle.
            self.loop.call_later(0, self.loop.call_soon, self._close_if_idle)
        else:
            self.loop.call_later(limits.FIRST_REQUEST_SECONDS, self._close_if_idle)

    def _close_if_idle(self) -> None:
        if self._is_idle():
            self.transport.close()

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Answer a request as if it had offered no other protocol.

        The parser has stopped between head and body. A new one learns from the same headers how the body is framed.
        """
        self.parser = httptools.HttpRequestParser(self)
        self._replays_head = True
        framing = b"".join(
            b"%b: %b\r\n" % header for header in self.scope["headers"] if header[0] in _FRAMING_HEADERS
        )
        self.parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % framing)
        if rest:
            self.data_received(rest)

    def _refuse(self, status: int) -> None:
        """Answer bytes that are no request, or the end of one that cannot be read, and close the connection."""
        self._reads_no_more = True
        self._max_linger_bytes = limits.MAX_LINGER_BYTES
        if self._in_head:
            self.headers.clear()  # kept for as long as the connection lingers, otherwise
        self.config.observer.refused(status)
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.keep_alive = False
            if self._in_head:
                return  # the requests before it are answered, and then the connection ends
            cycle.disconnected = True  # its body cannot be read to the end
            cycle.message_event.set()
            if cycle.response_started:
                self.transport.close()
                return
        explanation = _EXPLANATIONS[status] + b"\n"
        headers = [
            *self.server_state.default_headers,
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", str(len(explanation)).encode()),
            (b"connection", b"close"),
        ]
        lines = [b"%b: %b\r\n" % header for header in headers]
        self.transport.write(b"%b%b\r\n%b" % (STATUS_LINE[status], b"".join(lines), explanation))
        self._close_lingering()

    def _close_after_answer(self) -> None:
        if self._in_body:
            self._close_lingering()
        else:
            self.transport.close()

    def _close_lingering(self) -> None:
        """Close where the client may still be sending: our side first, then all of it once the client has closed.

        The kernel throws an answer away, read or not, when bytes come in for a closed socket (RFC 9112, section 9.6).
        """
        self._reads_no_more = True
        self.flow.resume_reading()
        self.transport.write_eof()
        self.loop.call_later(limits.LINGER_SECONDS, self.transport.close)
