"""Wraps a ZeroMQ socket on the event loop: a callback for each message that arrives, and sends that never wait.

Nothing here ever stops reading, and no high-water mark drops a message or blocks its sender: two ends that stop reading
until the other one reads would wait for each other for ever. What bounds the memory is admission: a front end holds no
more bytes of requests than its share of `server.max_pending_bytes`, from their first byte to their answer, so that no
more than those requests and their results are ever in flight.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import zmq

from embedserve_runtime.frontends.codec import Buffer

# Messages that are handled in one turn of the loop, which has other things to do as well.
MESSAGES_PER_TURN = 64
# Without a limit, of messages that wait in either direction.
UNLIMITED = 0

OnMessage = Callable[[Sequence[zmq.Frame]], None]


class MessageSocket:
    """Reads through the descriptor of the socket, without the futures that `zmq.asyncio` makes for each message.

    kind: the kind of the socket, as ZeroMQ numbers them. `open` it before use.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], kind: int, on_message: OnMessage) -> None:
        self.socket = context.socket(kind)
        self.socket.setsockopt(zmq.SNDHWM, UNLIMITED)
        self.socket.setsockopt(zmq.RCVHWM, UNLIMITED)
        # What nobody has taken yet when a socket is closed is of no use.
        self.socket.setsockopt(zmq.LINGER, 0)
        self._on_message = on_message
        self._loop = asyncio.get_running_loop()
        self._descriptor = int(self.socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._descriptor, self._read)
        self._reading_is_due = False

    def send(self, parts: Sequence[Buffer]) -> None:
        self.socket.send_multipart(parts, zmq.NOBLOCK)
        self._read_soon()

    def close(self) -> None:
        if not self.socket.closed:
            self._loop.remove_reader(self._descriptor)
            self.socket.close()

    def _read_soon(self) -> None:
        """Schedule reading. The descriptor signals a change once: sending may have taken the signal, and reading stops
        early at times."""
        if not self._reading_is_due:
            self._reading_is_due = True
            self._loop.call_soon(self._read_rest)

    def _read_rest(self) -> None:
        self._reading_is_due = False
        if not self.socket.closed and int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            self._read()

    def _read(self) -> None:
        """Read messages until there are none, or the event loop's other work is due."""
        self._read_soon()
        for _ in range(MESSAGES_PER_TURN):
            if self.socket.closed:
                return
            try:
                part = self.socket.recv(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            parts = [part]
            while part.more:  # the parts of a message come in together
                part = self.socket.recv(zmq.NOBLOCK, copy=False)
                parts.append(part)
            self._on_message(parts)
