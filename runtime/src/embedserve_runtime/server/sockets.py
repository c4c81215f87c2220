"""Listening sockets: alone on a port, or sharing it with those of other processes."""

from __future__ import annotations

import socket
from typing import NamedTuple

from embedserve_runtime.config import ServerSettings
from embedserve_runtime.errors import ConfigError
from embedserve_runtime.listening import open_bound_socket

BACKLOG = 2048


class Ports(NamedTuple):
    """The listening sockets of one front end.

    service: for requests by the service's name. space: for requests by the vector space's own name, where it has one.
    """

    service: socket.socket
    space: socket.socket | None

    def handles(self) -> tuple[int, ...]:
        return tuple(sock.fileno() for sock in self if sock)


def bind_ports(server: ServerSettings) -> list[Ports]:
    """Bind the sockets of each front end that the process starts with. Raises ConfigError."""
    count, grows = server.first_workers, server.http_workers == "auto"
    service = bind(server.host, server.port, count, grows=grows)
    if server.pinned_port is None:
        return [Ports(sock, None) for sock in service]
    space = bind(server.host, server.pinned_port, count, grows=grows)
    return [Ports(*pair) for pair in zip(service, space, strict=True)]


def bind_further_ports(first: Ports, count: int) -> list[Ports]:
    """Bind the sockets of `count` further front ends on the ports of the first, which were bound with `grows`.

    Raises ConfigError.
    """

    def bind_next_to(sock: socket.socket) -> socket.socket:
        host, port = sock.getsockname()[:2]
        return _listening(host, port, shared=True)

    return [
        Ports(bind_next_to(first.service), first.space and bind_next_to(first.space)) for _ in range(count)
    ]


def bind(host: str, port: int, count: int = 1, *, grows: bool = False) -> list[socket.socket]:
    """Bind listening sockets on one port; the kernel spreads connections over several by a hash of their addresses.

    grows: further sockets join them later. Raises ConfigError.
    """
    first = _listening(host, port, shared=False)
    if count == 1 and not grows:
        return [first]
    # Bound alone first: sockets that share a port would quietly share it with those of another server too.
    port = first.getsockname()[1]
    first.close()
    return [_listening(host, port, shared=True) for _ in range(count)]


def _listening(host: str, port: int, *, shared: bool) -> socket.socket:
    try:
        sock = open_bound_socket(host, port, shared=shared)
        try:
            sock.listen(BACKLOG)
        except OSError:
            sock.close()
            raise
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    sock.setblocking(False)
    return sock


def format_address(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
