"""One end of the connection between a front end and the engine's process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import cast

from embedserve_runtime.frontends.frames import BrokenStream, Frame, FrameReader, Kind, frame

# Bytes that may wait to be sent before this end stops reading: the other end gets no new work done for it until it
# takes what it has ordered.
HIGH_WATER = 4 * 2**20


class Link(asyncio.Protocol):
    """Calls `on_frame` for each frame, and `on_end` once when the other end is gone."""

    def __init__(self, on_frame: Callable[[Frame], None], on_end: Callable[[], None]) -> None:
        self._on_frame = on_frame
        self._on_end = on_end
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def over(
        cls, sock: socket.socket, on_frame: Callable[[Frame], None], on_end: Callable[[], None]
    ) -> Link:
        """Takes a connected socket over."""
        loop = asyncio.get_running_loop()
        sock.setblocking(False)
        _, link = await loop.create_unix_connection(lambda: cls(on_frame, on_end), sock=sock)
        return link

    def send(self, kind: Kind, number: int = 0, *parts: bytes) -> None:
        """What is sent to an end that is gone goes nowhere; `on_end` tells of it."""
        if self._transport:
            self._transport.write(frame(kind, number, *parts))

    def close(self) -> None:
        if self._transport:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(HIGH_WATER)

    def data_received(self, data: bytes) -> None:
        try:
            for received in self._reader.feed(data):
                self._on_frame(received)
        except BrokenStream:
            self.close()

    def pause_writing(self) -> None:
        if self._transport:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._transport:
            self._transport.resume_reading()

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None
        self._on_end()
