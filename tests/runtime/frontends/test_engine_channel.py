"""Front ends and the dispatcher over real sockets, in one loop: outcomes, refusals, cancellation, death."""

from __future__ import annotations

import asyncio
import socket
import stat
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import numpy as np
import pytest
import zmq
from msgspec.structs import replace

from embedserve_runtime.engines.base import FloatArray, Int32Array, PackedBatch
from embedserve_runtime.engines.results import Output
from embedserve_runtime.errors import (
    BatchTooLarge,
    DeadlineExceeded,
    EmbedserveError,
    EngineFailure,
    FrontEndFailure,
    NotReady,
    Overloaded,
)
from embedserve_runtime.frontends.codec import Buffer, Encoder
from embedserve_runtime.frontends.engine_channel import EngineChannel, Peer
from embedserve_runtime.frontends.front_end_channel import FrontEndChannel
from embedserve_runtime.frontends.messages import (
    EngineMessage,
    MetricsPageReply,
    MetricsPageRequest,
    QueueDepthChanged,
    RequestCompleted,
    RequestFailed,
    ServerStatus,
    Submit,
)
from embedserve_runtime.frontends.remote_dispatcher import RemoteDispatcher
from embedserve_runtime.frontends.setup import request_series
from embedserve_runtime.scheduling.batches import BatchRequest, CompletedRequest
from embedserve_runtime.scheduling.dispatcher import Dispatcher
from embedserve_runtime.scheduling.policy import Limits, QueueDepth
from embedserve_runtime.telemetry.metrics import Metrics
from tests.runtime.serve_kit import GatedRun, Run, TinyRunner, mean_of_ids

LIMITS = Limits(64, 1_000, 10)
LATER = 3_600.0


@dataclass
class FrontEnd:
    """One end of the channel as a front end has it, and what the engine's process knows of it.

    received: messages that are no outcomes.
    """

    limits: Limits
    channel: FrontEndChannel = field(init=False)
    dispatcher: RemoteDispatcher = field(init=False)
    peer: Peer = field(init=False)
    received: list[EngineMessage] = field(default_factory=list)
    said_hello: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def connect(self, channel: EngineChannel, identity: bytes) -> None:
        self.peer = channel.add(
            identity,
            on_hello=lambda _: self.said_hello.set(),
            on_ready=lambda: None,
            on_failure=self.ended.set,
        )
        self.channel = FrontEndChannel(channel.address, identity, self._receive, self.ended.set)
        self.dispatcher = RemoteDispatcher(self.channel, self.limits)

    def _receive(self, message: EngineMessage) -> None:
        if isinstance(message, RequestCompleted | RequestFailed):
            self.dispatcher.receive(message)
            return
        self.received.append(message)
        if isinstance(message, QueueDepthChanged):
            self.dispatcher.receive(message)


@dataclass
class Served:
    channel: EngineChannel
    dispatcher: Dispatcher
    front_ends: list[FrontEnd]


@asynccontextmanager
async def served(run: Run, front_ends: int = 1, limits: Limits = LIMITS) -> AsyncIterator[Served]:
    metrics = Metrics(request_series())
    channel = EngineChannel(metrics, lambda: b"the page")
    dispatcher = Dispatcher([TinyRunner(run)], limits, clock=perf_counter, observer=channel)
    channel.open(dispatcher)
    made = [FrontEnd(limits) for _ in range(front_ends)]
    try:
        for index, one in enumerate(made):
            one.connect(channel, b"front-end-%d" % index)
            await one.said_hello.wait()
        yield Served(channel, dispatcher, made)
    finally:
        dispatcher.close("the test is over")
        for one in made:
            channel.remove(one.peer)
            one.channel.close()
        channel.close()


def batch_request(*sequences: Int32Array, wanted: Output = Output.DENSE) -> BatchRequest:
    return BatchRequest(sequences, wanted)


def ids(*values: int) -> Int32Array:
    return np.array(values, dtype=np.int32)


def submit(
    front_end: FrontEnd, *sequences: Int32Array, seconds: float = LATER
) -> asyncio.Task[CompletedRequest]:
    return asyncio.create_task(
        front_end.dispatcher.submit(batch_request(*sequences), perf_counter() + seconds)
    )


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110  # turns of the loop, no time
        await asyncio.sleep(0)


async def until_queued(dispatcher: Dispatcher, inputs: int) -> None:
    await until(lambda: dispatcher.queued_inputs == inputs)


async def test_rows_come_back_to_the_front_end_that_asked() -> None:
    async with served(mean_of_ids(), front_ends=3) as server:
        tasks = [submit(server.front_ends[index % 3], ids(index, index + 1), ids(5)) for index in range(4)]
        outcomes = await asyncio.gather(*tasks)
    for index, done in enumerate(outcomes):
        want_rows = mean_of_ids()(PackedBatch.pack([ids(index, index + 1), ids(5)]))
        np.testing.assert_array_equal(done.results.dense, want_rows)


async def test_a_cancelled_request_leaves_the_queue_of_the_engine_and_never_runs() -> None:
    gate = GatedRun()
    async with served(gate) as server:
        (front_end,) = server.front_ends
        first = submit(front_end, ids(1))
        await asyncio.to_thread(gate.entered.acquire)
        gone, stays = submit(front_end, ids(7, 7)), submit(front_end, ids(2))
        await until_queued(server.dispatcher, 2)
        gone.cancel()
        await until_queued(server.dispatcher, 1)
        gate.release()
        await asyncio.gather(first, stays)
    assert [batch.token_ids.tolist() for batch in gate.batches] == [[1], [2]]


async def test_a_front_end_that_dies_takes_only_its_own_requests_along() -> None:
    gate = GatedRun()
    async with served(gate, front_ends=2) as server:
        dying, other = server.front_ends
        first = submit(other, ids(1))
        await asyncio.to_thread(gate.entered.acquire)
        lost, kept = submit(dying, ids(7)), submit(other, ids(2))
        await until_queued(server.dispatcher, 2)
        server.channel.remove(dying.peer)
        assert server.dispatcher.queued_inputs == 1
        gate.release()
        await asyncio.gather(first, kept)
        lost.cancel()
    assert [batch.token_ids.tolist() for batch in gate.batches] == [[1], [2]]


async def test_messages_of_a_front_end_that_is_gone_are_ignored() -> None:
    async with served(mean_of_ids()) as server:
        (dead,) = server.front_ends
        server.channel.remove(dead.peer)
        late = submit(dead, ids(7))
        successor = FrontEnd(LIMITS)
        successor.connect(server.channel, b"front-end-0.2")
        done = await submit(successor, ids(1))
        np.testing.assert_array_equal(done.results.dense, mean_of_ids()(PackedBatch.pack([ids(1)])))
        assert server.dispatcher.open_requests == 0
        assert not late.done()
        late.cancel()
        server.channel.remove(successor.peer)
        successor.channel.close()


async def test_a_full_queue_is_known_to_front_ends_before_they_tokenise_and_so_is_its_end() -> None:
    gate = GatedRun()
    async with served(gate, front_ends=2) as server:
        one, other = server.front_ends
        running = submit(one, ids(1))
        await asyncio.to_thread(gate.entered.acquire)
        waiting = submit(one, *[ids(2)] * 10)
        await until_queued(server.dispatcher, 10)
        await until(lambda: is_full(other))
        with pytest.raises(Overloaded):
            await submit(one, ids(3))
        gate.release()
        await asyncio.gather(running, waiting)
        await until(lambda: not is_full(other))


def is_full(front_end: FrontEnd) -> bool:
    try:
        front_end.dispatcher.check_room(1)
    except Overloaded:
        return True
    return False


DEPTHS: dict[str, tuple[list[list[Int32Array]], list[QueueDepthChanged]]] = {
    "half of the inputs": ([[ids(2)] * 5], []),
    "more than half of the inputs, in one turn": (
        [[ids(2)] * 6, [ids(2)], [ids(2)]],
        [QueueDepthChanged(QueueDepth(8, 8, None))],
    ),
    "half of the tokens": ([[np.full(500, 2, dtype=np.int32)]], []),
    "more than half of the tokens": (
        [[np.full(501, 2, dtype=np.int32)]],
        [QueueDepthChanged(QueueDepth(1, 501, None))],
    ),
}


@pytest.mark.parametrize(("requests", "told"), DEPTHS.values(), ids=DEPTHS)
async def test_what_waits_is_told_from_half_of_a_bound_on_and_once_a_turn(
    requests: list[list[Int32Array]], told: list[QueueDepthChanged]
) -> None:
    gate = GatedRun()
    async with served(gate) as server:
        (front_end,) = server.front_ends
        running = submit(front_end, ids(1))
        await asyncio.to_thread(gate.entered.acquire)
        for sequences in requests:
            server.dispatcher.start(batch_request(*sequences), perf_counter() + LATER, lambda _: None)
            server.channel.batch_done(inputs=1, tokens=1, padding=0, seconds=0.1, failed=False)
        await asyncio.sleep(0)
        last = ServerStatus(b"")
        server.channel.broadcast(last)
        await until(lambda: last in front_end.received)
        assert front_end.received == [*told, last]
        gate.release()
        await running


def failing(batch: PackedBatch) -> FloatArray:
    raise EngineFailure(f"cannot run {batch.tokens} tokens")


async def test_failures_reach_the_front_end_as_what_they_are() -> None:
    async with served(failing) as server:
        (front_end,) = server.front_ends
        cases: list[tuple[type[EmbedserveError], asyncio.Task[CompletedRequest]]] = [
            (EngineFailure, submit(front_end, ids(1))),
            (BatchTooLarge, submit(front_end, *[ids(1)] * 11)),
        ]
        for kind, task in cases:
            with pytest.raises(kind):
                await task


async def test_a_passed_deadline_is_told_while_the_engine_is_busy() -> None:
    gate = GatedRun()
    async with served(gate) as server:
        with pytest.raises(DeadlineExceeded):
            await submit(server.front_ends[0], ids(1), seconds=0.001)
        gate.release()


async def test_closing_the_dispatcher_fails_what_is_on_its_way() -> None:
    gate = GatedRun()
    async with served(gate) as server:
        running = submit(server.front_ends[0], ids(1))
        await asyncio.to_thread(gate.entered.acquire)
        server.dispatcher.close("the process is shutting down")
        with pytest.raises(NotReady, match="shutting down"):
            await running
        gate.release()


async def test_a_page_of_metrics_goes_to_who_asked() -> None:
    async with served(mean_of_ids(), front_ends=2) as server:
        one, other = server.front_ends
        one.channel.send(MetricsPageRequest(3))
        await until(lambda: bool(one.received))
        assert one.received == [MetricsPageReply(3, b"the page")]
        assert other.received == []


LARGE = Limits(2**21, 2**40, 2**20)
FLOATS = 2**17


def wide_rows(batch: PackedBatch) -> FloatArray:
    """Half a MiB for each sequence, filled with its first id."""
    firsts = batch.token_ids[batch.cu_seqlens[:-1]].astype(np.float32)
    return np.repeat(firsts[:, None], FLOATS, axis=1)


async def test_large_requests_and_large_answers_do_not_wait_for_each_other() -> None:
    """Answers of 8 MiB meet requests of 8 MiB; two ends that read only while they can write would stop for ever."""
    async with served(wide_rows, front_ends=2, limits=LARGE) as server:
        tasks = [
            submit(one, *[np.full(2**17, number, dtype=np.int32)] * 16)
            for number in range(8)
            for one in server.front_ends
        ]
        for place, task in enumerate(tasks):
            done = await task
            rows = done.results.dense
            assert rows is not None
            assert rows.shape == (16, FLOATS)
            assert (rows[:, ::4096] == place // 2).all()


async def test_no_message_is_lost_to_a_front_end_that_does_not_read() -> None:
    """Twice as many answers as ZeroMQ keeps of itself before it drops what comes next."""
    count = 4_000
    gate = GatedRun()
    async with served(gate, limits=Limits(count, count, count)) as server:
        (front_end,) = server.front_ends
        first = submit(front_end, ids(1))
        await asyncio.to_thread(gate.entered.acquire)
        outcomes: list[CompletedRequest | EmbedserveError] = []
        for _ in range(count):
            front_end.dispatcher.start(batch_request(ids(2)), perf_counter() + LATER, outcomes.append)
        await until_queued(server.dispatcher, count)
        server.dispatcher.close("all of them, in one turn of the loop")
        await until(lambda: len(outcomes) == count)
        gate.release()
        with pytest.raises(NotReady):
            await first


@contextmanager
def raw_socket(address: str, identity: bytes) -> Iterator[zmq.Socket[bytes]]:
    """That of a front end which sends whatever it is given."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as raw:
        raw.setsockopt(zmq.LINGER, 0)
        raw.setsockopt(zmq.ROUTING_ID, identity)
        raw.connect(address)
        yield raw


SUBMIT = Submit.of(1, batch_request(ids(7)), LATER)
MALFORMED: dict[str, Sequence[Buffer]] = {
    "no msgpack": [b"GET / HTTP/1.1\r\n\r\n"],
    "nothing": [b""],
    "nothing, and much beside it": [b"", bytes(2**20)],
    "a message for front ends": Encoder().encode(ServerStatus(b"")),
    "a request that contradicts itself": Encoder().encode(replace(SUBMIT, request=2, token_ids=ids(1, 2))),
    "a number that is taken": Encoder().encode(SUBMIT),
}


@pytest.mark.parametrize("parts", MALFORMED.values(), ids=MALFORMED)
async def test_a_malformed_message_ends_only_the_front_end_that_sent_it(parts: Sequence[Buffer]) -> None:
    gate, ended = GatedRun(), asyncio.Event()
    async with served(gate) as server:
        (other,) = server.front_ends
        first = submit(other, ids(1))
        await asyncio.to_thread(gate.entered.acquire)
        kept = submit(other, ids(2))
        server.channel.add(b"broken", on_hello=lambda _: None, on_ready=lambda: None, on_failure=ended.set)
        with raw_socket(server.channel.address, b"broken") as broken:
            broken.send_multipart(Encoder().encode(replace(SUBMIT, deadline=perf_counter() + LATER)))
            await until_queued(server.dispatcher, 2)
            broken.send_multipart(parts)
            await ended.wait()
            assert server.dispatcher.queued_inputs == 1
            # Nothing of it is taken any more.
            broken.send_multipart(Encoder().encode(replace(SUBMIT, request=3)))
            third = submit(other, ids(3))
            await until(lambda: server.dispatcher.queued_inputs > 1)
        gate.release()
        await asyncio.gather(first, kept, third)
        assert not other.ended.is_set()
    assert sorted(int(one) for batch in gate.batches for one in batch.token_ids) == [1, 2, 3]


async def test_what_is_not_zeromq_at_all_disturbs_nobody() -> None:
    async with served(mean_of_ids()) as server:
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(server.channel.address.removeprefix("ipc://"))
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
            await submit(server.front_ends[0], ids(1))


def modes(address: str) -> tuple[bool, int]:
    """Whether there is a socket, and who may enter its folder."""
    path = Path(address.removeprefix("ipc://"))
    return path.is_socket(), stat.S_IMODE(path.parent.stat().st_mode)


async def test_only_this_user_reaches_the_socket_and_it_is_gone_in_the_end() -> None:
    async with served(mean_of_ids()) as server:
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
    metrics = Metrics(request_series())
    with pytest.raises(FrontEndFailure, match="TMPDIR"):
        EngineChannel(metrics, metrics.page)
    assert not [*folder.iterdir()]
