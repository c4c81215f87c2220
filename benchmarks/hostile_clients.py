"""What clients that mean harm take from a server, and from those that mean well.

    python -m benchmarks.hostile_clients [--only WORD] [--seconds N] [--drop-seconds N] [--idle N]

One server process with a tiny model, started by the real command; one good client in a process of its own, which sends
short texts one after the other. Cases, each before, during and after:

    idle       20,000 connections that say nothing, from several addresses (fewer where a process may not have so many
               files; the column `clients` tells)
    slow       200 clients that send a byte a second, half of them in a head, half in a body
    endless    200 clients whose head has no end, as fast as they may; those cut off come again
    unread     100 clients that ask for 11 MB each and do not read it
    dropped    connections opened and dropped at random for --drop-seconds

`after` is once the server has let go of all connections of the case, or two minutes later. Memory is resident, of the
server's process; files and threads are its too. All runs on one machine: what the clients' own work takes from the good
one is part of the figures. Prints a table and asserts nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import random
import resource
import socket
import statistics
import struct
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.command_line import parser_of
from embedserve_runtime.telemetry.metrics import resident_bytes
from tests.support.http_connection import HttpConnection, build_post, build_request
from tests.support.models import small_minilm
from tests.support.monitored_server import MonitoredServer, start_monitored_server

SLOW, ENDLESS, UNREAD, DROPPING = 200, 200, 100, 50
UNREAD_INPUTS = 2_500
SMALL_BUFFER = 4_096
# Connections that one address of this machine opens: it has some 28,000 ports.
OF_ONE_ADDRESS = 5_000
AT_ONCE = 200
# Files that both processes need beside the connections of a case.
OTHER_FILES = 300
FEW_FILES = 10
AFTER_SECONDS = 120.0
BYTE_SECONDS = 1.0
AGAIN_SECONDS = 0.1
GOOD = build_post("/embed", {"inputs": "a short text"})
MIB = 2**20


@dataclass(frozen=True)
class Chosen:
    """Of the command line."""

    only: str
    seconds: float
    drop_seconds: float
    idle: int


@dataclass(frozen=True)
class ServerAddress:
    """The process and address of the server that clients connect to."""

    pid: int
    host: str
    port: int


def good_client(host: str, port: int, seconds: float) -> list[float]:
    """Seconds of each answer. In a process of its own. A connection that is ended is opened again."""
    took, ends = list[float](), time.monotonic() + seconds
    while time.monotonic() < ends:
        connection = HttpConnection(host, port)
        with contextlib.suppress(AssertionError, OSError):
            while time.monotonic() < ends:
                begun = time.perf_counter()
                connection.send(GOOD)
                answer = connection.read_answer()
                if answer.status == 200:
                    took.append(time.perf_counter() - begun)
        connection.close()
    return took


# -- the cases: each brings its clients up, counts them, and takes them away


Case = Callable[[ServerAddress, Chosen], "contextlib.AbstractAsyncContextManager[int]"]


async def connected(
    server: ServerAddress, number: int = 0, receive_buffer: int | None = None
) -> socket.socket:
    """number: of the client; every some thousands have another address."""
    sock = socket.socket()
    sock.setblocking(False)
    if receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    try:
        sock.bind((f"127.0.0.{2 + number // OF_ONE_ADDRESS}", 0))
        await asyncio.get_running_loop().sock_connect(sock, (server.host, server.port))
    except OSError:
        sock.close()
        raise
    return sock


@asynccontextmanager
async def idle(server: ServerAddress, chosen: Chosen) -> AsyncIterator[int]:
    max_sockets = min(chosen.idle, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - OTHER_FILES)
    opened: list[socket.socket] = []
    try:
        for start in range(0, max_sockets, AT_ONCE):
            several = (
                connected(server, number) for number in range(start, min(start + AT_ONCE, max_sockets))
            )
            found = await asyncio.gather(*several, return_exceptions=True)
            opened += [one for one in found if isinstance(one, socket.socket)]
        yield len(opened)
    finally:
        for sock in opened:
            sock.close()


async def again_and_again(work: Callable[[], Awaitable[None]]) -> None:
    """Until it is cancelled; what the server ends is begun anew."""
    while True:
        with contextlib.suppress(OSError):
            await work()
        await asyncio.sleep(AGAIN_SECONDS)


@asynccontextmanager
async def working(count: int, work: Callable[[int], Awaitable[None]]) -> AsyncIterator[int]:
    """So many clients that do the same without end."""

    def of(number: int) -> Callable[[], Awaitable[None]]:
        return lambda: work(number)

    tasks = [asyncio.create_task(again_and_again(of(number))) for number in range(count)]
    try:
        yield count
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


BEGINNINGS = (
    b"GET /info HTTP/1.1\r\nhost: a\r\nx-slow: ",
    build_request("POST", "/embed", "content-length: 1000"),
)


def slow(server: ServerAddress, _: Chosen) -> contextlib.AbstractAsyncContextManager[int]:
    loop = asyncio.get_running_loop()

    async def work(number: int) -> None:
        with contextlib.closing(await connected(server)) as sock:
            await loop.sock_sendall(sock, BEGINNINGS[number % 2])
            while True:
                await loop.sock_sendall(sock, b" ")
                await asyncio.sleep(BYTE_SECONDS)

    return working(SLOW, work)


def endless(server: ServerAddress, _: Chosen) -> contextlib.AbstractAsyncContextManager[int]:
    loop, block = asyncio.get_running_loop(), b"x: y\r\n" * 2_000

    async def work(_: int) -> None:
        with contextlib.closing(await connected(server)) as sock:
            await loop.sock_sendall(sock, b"GET /info HTTP/1.1\r\nhost: a\r\n")
            while True:
                await loop.sock_sendall(sock, block)

    return working(ENDLESS, work)


@asynccontextmanager
async def unread(server: ServerAddress, _: Chosen) -> AsyncIterator[int]:
    loop = asyncio.get_running_loop()
    large = build_post("/embed", {"inputs": ["a"] * UNREAD_INPUTS})
    turn = asyncio.Semaphore(4)  # more at once would find a full queue
    opened: list[socket.socket] = []

    async def ask(number: int) -> None:
        async with turn:
            sock = await connected(server, number, SMALL_BUFFER)
            opened.append(sock)
            await loop.sock_sendall(sock, large)
            await loop.sock_recv(sock, 12)  # it is being sent

    try:
        await asyncio.gather(*map(ask, range(UNREAD)), return_exceptions=True)
        yield len(opened)
    finally:
        for sock in opened:
            sock.close()


def dropped(server: ServerAddress, _: Chosen) -> contextlib.AbstractAsyncContextManager[int]:
    loop, chance = asyncio.get_running_loop(), random.Random(0)
    whole = build_post("/embed", {"inputs": ["some words of a text"] * 20})

    async def work(_: int) -> None:
        for _ in range(1_000):
            with contextlib.closing(await connected(server)) as sock:
                if sent := chance.choice((0, 10, len(whole) // 2, len(whole) - 1, len(whole))):
                    await loop.sock_sendall(sock, whole[:sent])
                await asyncio.sleep(chance.choice((0.0, 0.0, 0.01)))
                if chance.random() < 0.5:  # a reset, not an orderly end
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    return working(DROPPING, work)


CASES: dict[str, Case] = {
    "idle": idle,
    "slow": slow,
    "endless": endless,
    "unread": unread,
    "dropped": dropped,
}


# -- what is printed


def files_of(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def threads_of(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/task").iterdir())


class Table:
    """One server, measured by one good client."""

    def __init__(self, server: ServerAddress, pool: ProcessPoolExecutor) -> None:
        self._server = server
        self._pool = pool

    async def row(self, name: str, moment: str, clients: int, seconds: float) -> None:
        """memory and files: the most that was seen in the time; threads: at its end."""
        server, loop = self._server, asyncio.get_running_loop()
        asking = loop.run_in_executor(self._pool, good_client, server.host, server.port, seconds)
        memory = files = 0
        while not asking.done():
            memory, files = max(memory, resident_bytes(server.pid)), max(files, files_of(server.pid))
            await asyncio.wait((asking,), timeout=0.5)
        took = await asking
        p50, p99 = latencies(took)
        print(
            f"{name:10}{moment:8}{clients:8,}{memory / MIB:10,.0f}{files:8,}{threads_of(server.pid):9}"
            f"{len(took):10,}{p50:>9}{p99:>9}",
            flush=True,
        )

    async def until_let_go(self, files: int) -> None:
        """The server has hardly more files open than before, or a bounded time has passed."""
        ends = time.monotonic() + AFTER_SECONDS
        while files_of(self._server.pid) > files + FEW_FILES and time.monotonic() < ends:  # noqa: ASYNC110  # of another process
            await asyncio.sleep(0.1)


def latencies(took: list[float]) -> tuple[str, str]:
    """Milliseconds; dashes where there are too few."""
    if len(took) < 2:
        return "-", "-"
    cuts = statistics.quantiles(took, n=100, method="inclusive")
    return f"{cuts[49] * 1e3:.1f}", f"{cuts[98] * 1e3:.1f}"


async def measure(server: ServerAddress, chosen: Chosen, pool: ProcessPoolExecutor) -> None:
    table = Table(server, pool)
    print(
        f"{'case':10}{'moment':8}{'clients':>8}{'memory MB':>10}{'files':>8}{'threads':>9}"
        f"{'answers':>10}{'p50 ms':>9}{'p99 ms':>9}"
    )
    for name, case in CASES.items():
        if chosen.only not in name:
            continue
        files = files_of(server.pid)
        await table.row(name, "before", 0, chosen.seconds)
        async with case(server, chosen) as clients:
            await table.row(
                name, "during", clients, chosen.drop_seconds if name == "dropped" else chosen.seconds
            )
        await table.until_let_go(files)
        await table.row(name, "after", 0, chosen.seconds)


@contextmanager
def all_files() -> Iterator[None]:
    """As many files as this user may open: for this process, and for the server, which inherits it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def server() -> Iterator[MonitoredServer]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with start_monitored_server(small_minilm(folder / "model"), folder) as started:
            yield started


def arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--only", default="", help="cases whose name has this word")
    parser.add_argument("--seconds", type=float, default=10.0, help="that the good client asks, each time")
    parser.add_argument("--drop-seconds", type=float, default=60.0, help="of connections dropped at random")
    parser.add_argument("--idle", type=int, default=20_000, help="connections that say nothing")
    return parser.parse_args()


def main() -> None:
    chosen = Chosen(**vars(arguments()))
    context = multiprocessing.get_context("spawn")
    with all_files(), ProcessPoolExecutor(1, mp_context=context) as pool, server() as started:
        address = ServerAddress(started.pid, started.host, started.port)
        asyncio.run(measure(address, chosen, pool))
        bugs = started.list_new_errors()
        print(f"lines of the server's log that tell of a bug: {len(bugs)}")
        for line in bugs[:3]:
            print(str(line.get("exception", line["message"])).splitlines()[-1])


if __name__ == "__main__":
    main()
