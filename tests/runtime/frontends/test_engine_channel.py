"""Front ends and the dispatcher over real sockets, in one loop: outcomes, refusals, cancellation, death."""

from __future__ import annotations

import asyncio
from time import perf_counter

import numpy as np
import pytest

from embedserve_runtime.errors import (
    BatchTooLarge,
    DeadlineExceeded,
    EmbedserveError,
    EngineFailure,
    NotReady,
    Overloaded,
    RateLimited,
)
from embedserve_runtime.forward.arrays import FloatArray, Int32Array
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.frontends.messages import (
    MetricsPageRequest,
    MetricsPageResponse,
    QueueDepthChanged,
    StatusChanged,
)
from embedserve_runtime.scheduling.batches import CompletedRequest
from embedserve_runtime.scheduling.clients import Client
from embedserve_runtime.scheduling.policy import Limits, QueueDepth
from tests.runtime.frontends.channel_kit import (
    LATER,
    LIMITS,
    FrontEnd,
    batch_request,
    ids,
    served,
    submit,
    until,
    until_queued,
)
from tests.support.in_process_server import count_open_requests
from tests.support.tiny_runners import GatedRun, build_mean_run


async def test_rows_come_back_to_the_front_end_that_asked() -> None:
    async with served(build_mean_run(), front_ends=3) as server:
        tasks = [submit(server.front_ends[index % 3], ids(index, index + 1), ids(5)) for index in range(4)]
        outcomes = await asyncio.gather(*tasks)
    for index, outcome in enumerate(outcomes):
        want_rows = build_mean_run()(PackedBatch.pack([ids(index, index + 1), ids(5)]))
        np.testing.assert_array_equal(outcome.results.dense, want_rows)


async def test_a_cancelled_request_leaves_the_queue_of_the_engine_and_never_runs() -> None:
    gate = GatedRun()
    async with served(gate) as server:
        (front_end,) = server.front_ends
        first = submit(front_end, ids(1))
        await asyncio.to_thread(gate.entered.acquire)
        cancelled, stays = submit(front_end, ids(7, 7)), submit(front_end, ids(2))
        await until_queued(server.dispatcher, 2)
        cancelled.cancel()
        await until_queued(server.dispatcher, 1)
        gate.release()
        await asyncio.gather(first, stays)
    assert [batch.token_ids.tolist() for batch in gate.batches] == [[1], [2]]


async def test_a_front_end_that_dies_takes_only_its_own_requests_along() -> None:
    gate = GatedRun()
    async with served(gate, front_ends=2) as server:
        dying, survivor = server.front_ends
        first = submit(survivor, ids(1))
        await asyncio.to_thread(gate.entered.acquire)
        lost, surviving = submit(dying, ids(7)), submit(survivor, ids(2))
        await until_queued(server.dispatcher, 2)
        server.channel.remove(dying.peer)
        assert server.dispatcher.queued_inputs == 1
        gate.release()
        await asyncio.gather(first, surviving)
        lost.cancel()
    assert [batch.token_ids.tolist() for batch in gate.batches] == [[1], [2]]


async def test_messages_of_a_front_end_that_is_gone_are_ignored() -> None:
    async with served(build_mean_run()) as server:
        (dead,) = server.front_ends
        server.channel.remove(dead.peer)
        late = submit(dead, ids(7))
        successor = FrontEnd(LIMITS)
        successor.connect(server.channel, b"front-end-0.2")
        completed = await submit(successor, ids(1))
        np.testing.assert_array_equal(completed.results.dense, build_mean_run()(PackedBatch.pack([ids(1)])))
        assert count_open_requests(server.dispatcher) == 0
        assert not late.done()
        late.cancel()
        server.channel.remove(successor.peer)
        successor.channel.close()


async def test_a_full_queue_is_known_to_front_ends_before_they_tokenise_and_so_is_its_end() -> None:
    gate = GatedRun()
    async with served(gate, front_ends=2) as server:
        first, second = server.front_ends
        running = submit(first, ids(1))
        await asyncio.to_thread(gate.entered.acquire)
        waiting = submit(first, *[ids(2)] * 10)
        await until_queued(server.dispatcher, 10)
        await until(lambda: is_full(second))
        with pytest.raises(Overloaded):
            await submit(first, ids(3))
        gate.release()
        await asyncio.gather(running, waiting)
        await until(lambda: not is_full(second))


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


@pytest.mark.parametrize(("requests", "reports"), DEPTHS.values(), ids=DEPTHS)
async def test_what_waits_is_told_from_half_of_a_bound_on_and_once_a_turn(
    requests: list[list[Int32Array]], reports: list[QueueDepthChanged]
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
        last = StatusChanged(b"")
        server.channel.broadcast(last)
        await until(lambda: last in front_end.received)
        assert front_end.received == [*reports, last]
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
    async with served(build_mean_run(), front_ends=2) as server:
        first, second = server.front_ends
        first.channel.send(MetricsPageRequest(3))
        await until(lambda: bool(first.received))
        assert first.received == [MetricsPageResponse(3, b"the page")]
        assert second.received == []


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
            submit(front_end, *[np.full(2**17, number, dtype=np.int32)] * 16)
            for number in range(8)
            for front_end in server.front_ends
        ]
        for index, task in enumerate(tasks):
            completed = await task
            rows = completed.results.dense
            assert rows is not None
            assert rows.shape == (16, FLOATS)
            assert (rows[:, ::4096] == index // 2).all()


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


async def test_inputs_that_did_not_run_are_held_against_the_rate_that_all_front_ends_share() -> None:
    client = Client("search", tokens_per_minute=10)
    async with served(build_mean_run(), front_ends=2) as server:
        first, second = server.front_ends
        await first.dispatcher.meter_reused(client, 2, 6)
        with pytest.raises(RateLimited) as refused:
            await second.dispatcher.meter_reused(client, 2, 6)
    assert refused.value.retry_after > 0
