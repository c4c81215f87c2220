"""Whoever reaches the socket of the engine channel and is no front end, or one that sends nonsense."""

from __future__ import annotations

import asyncio
import socket
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

import pytest
import zmq
from msgspec.structs import replace

from embedserve_runtime.errors import (
    FrontEndFailure,
)
from embedserve_runtime.frontends.codec import Buffer, MessageEncoder
from embedserve_runtime.frontends.context import build_request_series
from embedserve_runtime.frontends.engine_channel import EngineChannel
from embedserve_runtime.frontends.messages import (
    StatusChanged,
    Submit,
)
from embedserve_runtime.telemetry.metrics import Metrics
from tests.runtime.frontends.channel_kit import (
    LATER,
    batch_request,
    ids,
    served,
    submit,
    until,
    until_queued,
)
from tests.support.tiny_runners import GatedRun, build_mean_run


@contextmanager
def raw_socket(address: str, identity: bytes) -> Iterator[zmq.Socket[bytes]]:
    """That of a front end which sends whatever it is given."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as raw:
        raw.setsockopt(zmq.LINGER, 0)
        raw.setsockopt(zmq.ROUTING_ID, identity)
        raw.connect(address)
        yield raw


SUBMIT = Submit.build(1, batch_request(ids(7)), LATER)
MALFORMED: dict[str, Sequence[Buffer]] = {
    "no msgpack": [b"GET / HTTP/1.1\r\n\r\n"],
    "nothing": [b""],
    "nothing, and much beside it": [b"", bytes(2**20)],
    "a message for front ends": MessageEncoder().encode(StatusChanged(b"")),
    "a request that contradicts itself": MessageEncoder().encode(
        replace(SUBMIT, request_id=2, token_ids=ids(1, 2))
    ),
    "a number that is taken": MessageEncoder().encode(SUBMIT),
}


@pytest.mark.parametrize("parts", MALFORMED.values(), ids=MALFORMED)
async def test_a_malformed_message_ends_only_the_front_end_that_sent_it(parts: Sequence[Buffer]) -> None:
    gate, ended = GatedRun(), asyncio.Event()
    async with served(gate) as server:
        (survivor,) = server.front_ends
        first = submit(survivor, ids(1))
        await asyncio.to_thread(gate.entered.acquire)
        request = submit(survivor, ids(2))
        server.channel.add(b"broken", on_hello=lambda _: None, on_ready=lambda: None, on_failure=ended.set)
        with raw_socket(server.channel.address, b"broken") as broken:
            broken.send_multipart(MessageEncoder().encode(replace(SUBMIT, deadline=perf_counter() + LATER)))
            await until_queued(server.dispatcher, 2)
            broken.send_multipart(parts)
            await ended.wait()
            assert server.dispatcher.queued_inputs == 1
            # Nothing of it is taken any more.
            broken.send_multipart(MessageEncoder().encode(replace(SUBMIT, request_id=3)))
            third = submit(survivor, ids(3))
            await until(lambda: server.dispatcher.queued_inputs > 1)
        gate.release()
        await asyncio.gather(first, request, third)
        assert not survivor.ended.is_set()
    assert sorted(int(token) for batch in gate.batches for token in batch.token_ids) == [1, 2, 3]


async def test_what_is_not_zeromq_at_all_disturbs_nobody() -> None:
    async with served(build_mean_run()) as server:
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(server.channel.address.removeprefix("ipc://"))
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
            await submit(server.front_ends[0], ids(1))


def modes(address: str) -> tuple[bool, int]:
    """Return whether there is a socket, and who may enter its folder."""
    path = Path(address.removeprefix("ipc://"))
    return path.is_socket(), stat.S_IMODE(path.parent.stat().st_mode)


async def test_only_this_user_reaches_the_socket_and_it_is_gone_in_the_end() -> None:
    async with served(build_mean_run()) as server:
        address = server.channel.address
        assert modes(address) == (True, 0o700)
    with pytest.raises(FileNotFoundError):
        modes(address)


async def test_a_folder_whose_path_is_too_long_for_a_socket_is_told_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    metrics = Metrics(build_request_series())
    with pytest.raises(FrontEndFailure, match="TMPDIR"):
        EngineChannel(metrics, metrics.page)
    assert not [*folder.iterdir()]
