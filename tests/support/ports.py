"""A port for a server that a test starts."""

from __future__ import annotations

import random
import socket

_PORTS = range(20_000, 32_768)
"""Below those that Linux gives to connections: such a port can be taken between the search and the server's start."""


def find_free_port() -> int:
    """Return a port on which nobody listens, at any address, and which no connection holds."""
    for port in random.sample(_PORTS, k=len(_PORTS)):
        with socket.socket() as tried:
            try:
                tried.bind(("", port))
            except OSError:
                continue
            return port
    raise AssertionError("every port is taken")
