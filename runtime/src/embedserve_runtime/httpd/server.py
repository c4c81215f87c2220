"""The listening socket: accepting one client at a time, time limits of connections, the end.

One connection is taken each time the socket is readable, so that a burst of them does not hold up requests.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import socket
from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from embedserve_runtime.httpd.connection import Application, Connection
from embedserve_runtime.httpd.turn import QuickRoute

log = logging.getLogger(__name__)

# Longer than the idle time of common load balancers, so that they close first and no request meets a closing
# connection.
IDLE_SECONDS = 75.0
# One look at all connections in so many seconds; time limits are that coarse.
SWEEP_SECONDS = 1.0
# Connections of one process at the same time; further ones wait in the kernel.
MOST_CONNECTIONS = 16_384
# After the process has run out of file descriptors.
ACCEPT_PAUSE_SECONDS = 0.5


class Watches(Protocol):
    """Told about connections, and about bytes that were no request, with the status that they got."""

    def connection_opened(self) -> None: ...
    def connection_closed(self) -> None: ...
    def refused(self, status: int) -> None: ...


class Server:
    """Serves `app` on a listening socket, which stays its owner's. Made on the loop that it runs on."""

    def __init__(
        self,
        app: Application,
        sock: socket.socket,
        watches: Watches,
        quick: Mapping[bytes, QuickRoute] = MappingProxyType({}),
    ) -> None:
        """quick: what answers some requests without a task, by their target, as the application would."""
        self.app = app
        self.quick = quick
        self.idle_seconds = IDLE_SECONDS
        self.is_stopping = False
        self._socket = sock
        self._watches = watches
        self._loop = asyncio.get_running_loop()
        self._connections: set[Connection] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._empty = asyncio.Event()
        self._is_accepting = False
        self._accept_on()
        self._sweeper = self._loop.call_later(SWEEP_SECONDS, self._sweep)

    def stop(self) -> None:
        """Accept no more; connections end after the request in work."""
        if self.is_stopping:
            return
        self._accept_off()
        self.is_stopping = True
        # What has arrived by now is read first, so that no connection with a request on it counts as idle.
        self._loop.call_later(0, self._loop.call_soon, self._stop_connections)

    async def finished(self) -> None:
        """After `stop`: until the last connection is closed."""
        await self._empty.wait()

    def abort(self) -> None:
        """Close everything at once."""
        self.stop()
        for connection in [*self._connections]:
            connection.abort()

    def close(self) -> None:
        """Let go of the loop; connections are gone already."""
        self._accept_off()
        self._sweeper.cancel()

    # -- from connections

    def opened(self, connection: Connection) -> None:
        self._connections.add(connection)
        self._watches.connection_opened()
        if len(self._connections) >= MOST_CONNECTIONS:
            self._accept_off()

    def closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._watches.connection_closed()
        if not self.is_stopping:
            self._accept_on()
        self._note_if_empty()

    def refused(self, status: int) -> None:
        self._watches.refused(status)

    # --

    def _accept_on(self) -> None:
        if not self._is_accepting and not self.is_stopping:
            self._is_accepting = True
            self._loop.add_reader(self._socket.fileno(), self._accept)

    def _accept_off(self) -> None:
        if self._is_accepting:
            self._is_accepting = False
            self._loop.remove_reader(self._socket.fileno())

    def _accept(self) -> None:
        try:
            client, _ = self._socket.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # another process was faster, or the client has gone
        except OSError as error:
            if error.errno not in {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}:
                raise
            log.warning("cannot accept connections", extra={"error": error.strerror})
            self._accept_off()
            self._loop.call_later(ACCEPT_PAUSE_SECONDS, self._accept_on)
            return
        client.setblocking(False)
        task = self._loop.create_task(self._open(client))
        self._opening.add(task)
        task.add_done_callback(self._opened)

    def _opened(self, task: asyncio.Task[None]) -> None:
        self._opening.discard(task)
        self._note_if_empty()

    async def _open(self, client: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: Connection(self, self._loop), client)
        except OSError:
            client.close()

    def _stop_connections(self) -> None:
        for connection in [*self._connections]:
            connection.stop()
        self._note_if_empty()

    def _note_if_empty(self) -> None:
        if self.is_stopping and not self._connections and not self._opening:
            self._empty.set()

    def _sweep(self) -> None:
        now = self._loop.time()
        for connection in [one for one in self._connections if one.due <= now]:
            connection.due = math.inf
            connection.time_out()
        self._sweeper = self._loop.call_later(SWEEP_SECONDS, self._sweep)
