"""Opens sockets on an address to listen on, of either IP version."""

from __future__ import annotations

import errno
import socket

ALL_ADDRESSES = "::"
"""Every address of this machine, of both versions."""
_ALL_IPV4 = "0.0.0.0"
_NO_IPV6 = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT})
"""The errors that a kernel without IPv6 answers with."""


def open_bound_socket(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """Return a TCP socket that is bound and does not listen yet.

    `::` takes IPv4 connections too, by mapped addresses, and is 0.0.0.0 where the kernel has no IPv6. With `shared`,
    other sockets may be bound to the same port. Raises OSError.
    """
    try:
        return _open(host, port, shared=shared)
    except OSError as error:
        if host != ALL_ADDRESSES or error.errno not in _NO_IPV6:
            raise
        return _open(_ALL_IPV4, port, shared=shared)


def _open(host: str, port: int, *, shared: bool) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if host == ALL_ADDRESSES:
            # The default is the machine's choice (net.ipv6.bindv6only).
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    return sock
