"""Ports on every address: of IPv4 and IPv6, and of IPv6 alone as pods of an IPv6-only cluster have it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from urllib.request import urlopen

import pytest

from embedserve_runtime.listening import ALL_ADDRESSES, open_bound_socket
from embedserve_runtime.server.sockets import bind
from embedserve_runtime.sources.progress import Progress

HAS_IPV6 = socket.has_dualstack_ipv6()
needs_ipv6 = pytest.mark.skipif(not HAS_IPV6, reason="this machine has no IPv6")


@needs_ipv6
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("count", [1, 2], ids=["alone", "shared"])
def test_every_address_takes_connections_of_both_versions(address: str, count: int) -> None:
    listening = bind(ALL_ADDRESSES, 0, count)
    port = listening[0].getsockname()[1]
    with socket.create_connection((address, port), timeout=30):
        pass
    for sock in listening:
        sock.close()


@needs_ipv6
def test_an_address_of_one_version_takes_that_version_alone() -> None:
    with open_bound_socket("0.0.0.0", 0) as sock:
        sock.listen()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("::1", sock.getsockname()[1]), timeout=30)


@needs_ipv6
@pytest.mark.parametrize("address", ["127.0.0.1", "[::1]"])
def test_the_progress_of_a_fetch_is_served_on_every_address(address: str) -> None:
    with Progress().serve(ALL_ADDRESSES, 0) as port, urlopen(f"http://{address}:{port}/progress") as answer:
        assert "phase" in json.load(answer)


PROGRAM = """
import socket, subprocess
from embedserve_runtime.server.sockets import bind
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
subprocess.run(["ip", "address", "del", "127.0.0.1/8", "dev", "lo"], check=True)
(listening,) = bind("::", 0)
with socket.create_connection(("::1", listening.getsockname()[1]), timeout=30):
    print("connected")
"""


@needs_ipv6
@pytest.mark.skipif(os.geteuid() != 0, reason="a network namespace needs root")
def test_a_network_without_ipv4_is_served() -> None:
    completed = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (completed.returncode, completed.stdout) == (0, "connected\n"), completed.stderr
