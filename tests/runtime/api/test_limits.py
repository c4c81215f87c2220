"""Refusals under load, deadlines, clients that go away, and what the probes say meanwhile."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from starlette.types import Message

from embedserve_runtime.api.clients import ClientIdentifier
from embedserve_runtime.api.memory import MIN_REQUEST_BYTES, RequestMemory
from embedserve_runtime.api.middleware import disconnect
from embedserve_runtime.api.middleware.disconnect import WATCH_SECONDS, RequestWatcher
from embedserve_runtime.api.routers.sagemaker_vertex import MAX_CONCURRENT_INSTANCES
from embedserve_runtime.config import BatchingSettings
from embedserve_runtime.scheduling.policy import Limits
from embedserve_runtime.service.readiness import Phase
from tests.support.in_process_server import InProcessServer, count_open_requests, serve_in_process
from tests.support.tiny_runners import GatedRun

EMBED = "/embed"
SCOPE = {"type": "http", "method": "POST", "path": EMBED, "query_string": b"", "headers": []}


def post(server: InProcessServer, **body: Any) -> asyncio.Task[httpx.Response]:
    return asyncio.create_task(server.client.post(EMBED, json=body))


async def queued(server: InProcessServer, inputs: int) -> None:
    """So many inputs wait behind the engine."""
    while server.dispatcher.queued_inputs < inputs:  # noqa: ASYNC110  # turns of the loop, no time
        await asyncio.sleep(0)


async def test_a_full_queue_is_429_with_the_seconds_to_wait() -> None:
    gate = GatedRun()
    async with serve_in_process(gate, limits=Limits(8, 1_000, queue_inputs=2)) as server:
        running = post(server, inputs="hello")
        await asyncio.to_thread(gate.entered.acquire)
        waiting = post(server, inputs=["list", "world"])
        await queued(server, 2)
        refused = await post(server, inputs="hello")
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error_type"] == "Overloaded"
        assert server.get_metric("embedserve_queue_depth") == 2
        assert server.get_metric("te_queue_size") == 2
        assert server.get_metric("embedserve_queue_tokens") == 6
        gate.release()
        assert [(await task).status_code for task in (running, waiting)] == [200, 200]
        assert server.get_metric("embedserve_queue_depth") == 0


async def test_a_request_that_could_never_wait_is_422_and_not_told_to_come_back() -> None:
    async with serve_in_process(limits=Limits(8, 1_000, queue_inputs=2)) as server:
        refused = await post(server, inputs=["a", "b", "c"])
    assert refused.status_code == 422
    assert "retry-after" not in refused.headers


@pytest.mark.parametrize("nested", [False, True])
async def test_a_million_token_ids_are_refused_by_their_commas_before_they_are_parsed(nested: bool) -> None:
    ids = "5," * 999_989 + '"not an id"'
    content = f'{{"inputs": [[{ids}]]}}' if nested else f'{{"inputs": [{ids}]}}'
    async with serve_in_process(memory=RequestMemory(2**23, 2**24)) as server:
        answer = await server.client.post(EMBED, content=content)
    assert answer.status_code == 422
    assert answer.json()["error"] == "the body has more than 131072 values; send fewer at a time"


async def test_a_request_not_answered_in_time_is_504() -> None:
    gate = GatedRun()
    async with serve_in_process(gate, batching=BatchingSettings(request_timeout_seconds=0.001)) as server:
        answer = await post(server, inputs="hello")
        gate.release()
    assert answer.status_code == 504
    assert "not answered within" in answer.json()["error"]


@pytest.mark.parametrize("route", [EMBED, "/v1/encode"])
async def test_a_request_whose_inputs_take_too_long_to_tokenize_is_504_in_its_time(route: str) -> None:
    """A text of megabytes without a blank took 10 s with a limit of 1 s."""
    release = threading.Event()
    async with serve_in_process() as server:
        blockers = [asyncio.create_task(server.service.run_in_thread(release.wait)) for _ in range(64)]
        await asyncio.sleep(0)
        answer = await server.client.post(
            route, json={"inputs": "a" * 10_000}, headers={"x-embedserve-timeout": "0.05"}
        )
        release.set()
        await asyncio.gather(*blockers)
        assert server.context.memory.pending == 0
    assert answer.status_code == 504
    assert "not tokenized within 0.0" in answer.text
    assert "within 0.0 s" not in answer.text


async def test_of_many_instances_some_at_a_time_are_queued_and_all_are_answered_in_order() -> None:
    gate = GatedRun()
    count = 2 * MAX_CONCURRENT_INSTANCES + 1
    instances = [{"inputs": [[1 + index % 5]]} for index in range(count)]
    async with serve_in_process(gate) as server:
        asking = asyncio.create_task(server.client.post("/vertex", json={"instances": instances}))
        await asyncio.to_thread(gate.entered.acquire)
        while count_open_requests(server.dispatcher) < MAX_CONCURRENT_INSTANCES:  # noqa: ASYNC110  # turns of the loop
            await asyncio.sleep(0)
        assert count_open_requests(server.dispatcher) == MAX_CONCURRENT_INSTANCES
        gate.release()
        answer = await asking
    predictions = answer.json()["predictions"]
    assert len(predictions) == count
    assert predictions[5:] == predictions[:-5]
    assert predictions[0] != predictions[1]


async def test_the_time_of_a_client_holds_for_all_instances_together() -> None:
    gate = GatedRun()
    instances = [{"inputs": "hello"}] * (2 * MAX_CONCURRENT_INSTANCES)
    async with serve_in_process(gate) as server:
        answer = await server.client.post(
            "/vertex", json={"instances": instances}, headers={"x-embedserve-timeout": "0.05"}
        )
        assert answer.status_code == 504
        gate.release()


async def test_bytes_of_all_requests_together_are_bounded() -> None:
    gate = GatedRun()
    memory = RequestMemory(max_body_bytes=10_000, max_pending_bytes=2 * MIN_REQUEST_BYTES)
    async with serve_in_process(gate, memory=memory) as server:
        first, second = post(server, inputs="hello"), post(server, inputs="hello")
        await asyncio.to_thread(gate.entered.acquire)
        refused = await post(server, inputs="hello")
        alive = await server.client.get("/livez")
        gate.release()
        assert [(await task).status_code for task in (first, second)] == [200, 200]
    assert refused.status_code == 429
    assert alive.status_code == 200, "probes need no room"
    assert memory.pending == 0


async def test_no_client_takes_the_memory_of_all_requests() -> None:
    gate = GatedRun()
    memory = RequestMemory(max_body_bytes=10_000, max_pending_bytes=4 * MIN_REQUEST_BYTES)
    async with serve_in_process(gate, memory=memory, clients=ClientIdentifier(header=b"x-tenant")) as server:

        def send(tenant: str) -> asyncio.Task[httpx.Response]:
            request = server.client.post(EMBED, json={"inputs": tenant}, headers={"x-tenant": tenant})
            return asyncio.create_task(request)

        large = [send("large") for _ in range(2)]
        await asyncio.to_thread(gate.entered.acquire)
        refused = await send("large")
        small = send("small")
        gate.release()
        assert [(await task).status_code for task in (*large, small)] == [200, 200, 200]
    assert refused.status_code == 429
    assert "'large' has its share of the memory" in refused.json()["error"]
    assert memory == RequestMemory(10_000, 4 * MIN_REQUEST_BYTES), "all of it is released"


async def test_the_only_request_of_a_client_may_take_more_than_half_of_the_memory() -> None:
    memory = RequestMemory(max_body_bytes=100_000, max_pending_bytes=100_000)
    async with serve_in_process(memory=memory, clients=ClientIdentifier(header=b"x-tenant")) as server:
        body = {"inputs": "a" * 60_000, "truncate": True}
        answer = await server.client.post(EMBED, json=body, headers={"x-tenant": "one"})
    assert answer.status_code == 200


@pytest.mark.parametrize("announced", [True, False], ids=["by its length", "only while it is read"])
async def test_a_body_over_the_bound_is_413(announced: bool) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(30):
            yield b"x" * 100

    memory = RequestMemory(max_body_bytes=1_000, max_pending_bytes=10_000)
    async with serve_in_process(memory=memory) as server:
        content = b"x" * 3_000 if announced else chunks()
        answer = await server.client.post(EMBED, content=content)
    assert answer.status_code == 413
    assert answer.headers["connection"] == "close"
    assert memory.pending == 0


async def test_a_client_that_goes_away_takes_its_work_out_of_the_queue() -> None:
    gate = GatedRun()
    async with serve_in_process(gate) as server:
        running = post(server, inputs="hello")
        await asyncio.to_thread(gate.entered.acquire)
        disconnected = asyncio.Event()
        waiting = asyncio.create_task(call_until(server, b'{"inputs": ["a", "b"]}', disconnected))
        await queued(server, 2)
        disconnected.set()
        messages = await waiting
        assert messages == []
        assert server.dispatcher.queued_inputs == 0
        gate.release()
        assert (await running).status_code == 200
        assert server.get_metric("embedserve_requests_total", {"route": EMBED, "status": "499"}) == 1
        assert server.context.memory.pending == 0
    assert len(gate.batches) == 1


async def call_until(server: InProcessServer, body: bytes, disconnected: asyncio.Event) -> list[Message]:
    """Call the application as a server does, with a client that leaves when `gone` is set."""
    messages: list[Message] = []
    incoming: Iterator[Message] = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> Message:
        if message := next(incoming, None):
            return message
        await disconnected.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        messages.append(message)

    scope = SCOPE
    await server.app(scope, receive, send)
    return messages


async def test_a_client_that_goes_away_while_sending_is_forgotten() -> None:
    async with serve_in_process() as server:
        incoming: Iterator[Message] = iter(
            [
                {"type": "http.request", "body": b'{"inputs"', "more_body": True},
                {"type": "http.disconnect"},
            ]
        )

        async def receive() -> Message:
            return next(incoming)

        async def send(message: Message) -> None:
            raise AssertionError("nobody is there")

        await server.app(
            SCOPE,
            receive,
            send,
        )
        assert server.context.memory.pending == 0
        assert server.get_metric("embedserve_requests_in_flight") == 0


async def test_nothing_is_kept_of_an_answered_request() -> None:
    async def receive() -> Message:
        raise AssertionError("it is answered before anybody listens")

    watcher = RequestWatcher()
    watcher.stop(watcher.watch(receive))
    reference = weakref.ref(receive)
    del receive
    assert reference() is None, "its body would stay in memory as long"


async def test_a_body_that_does_not_arrive_is_408(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disconnect, "BODY_SECONDS", WATCH_SECONDS)
    async with serve_in_process() as server:
        incoming: Iterator[Message] = iter([{"type": "http.request", "body": b"{", "more_body": True}])
        messages: list[Message] = []

        async def receive() -> Message:
            if message := next(incoming, None):
                return message
            await asyncio.Event().wait()
            raise AssertionError("nothing more comes")

        async def send(message: Message) -> None:
            messages.append(message)

        await server.app(
            SCOPE,
            receive,
            send,
        )
        assert server.context.memory.pending == 0
    assert messages[0]["status"] == 408
    assert (b"connection", b"close") in messages[0]["headers"]


PROBES = [
    pytest.param(Phase.LOADING, False, 503, 503, id="loading"),
    pytest.param(Phase.READY, True, 200, 200, id="ready"),
    pytest.param(Phase.DRAINING, True, 503, 200, id="draining still serves"),
]


@pytest.mark.parametrize(("phase", "has_service", "want_ready", "want_embed"), PROBES)
async def test_probes_and_routes_in_each_phase(
    phase: Phase, has_service: bool, want_ready: int, want_embed: int
) -> None:
    async with serve_in_process(ready=has_service) as server:
        server.context.readiness.move(phase, "a sentence about it")
        ready = await server.client.get("/readyz")
        health = await server.client.get("/health")
        alive = await server.client.get("/livez")
        embed = await post(server, inputs="hello")
        openai = await server.client.post("/v1/embeddings", json={"input": "hello"})
    assert (ready.status_code, health.status_code, alive.status_code) == (want_ready, want_ready, 200)
    assert ready.json() == {"status": phase, "message": "a sentence about it"}
    assert (embed.status_code, openai.status_code) == (want_embed, want_embed)
    if want_ready == 503:
        assert health.json()["error_type"] == "Unhealthy"
        assert "a sentence about it" in health.json()["error"]
    if phase is Phase.DRAINING:
        assert embed.headers["connection"] == "close", "keep-alive clients move to another replica"


async def test_probes_are_answered_while_the_engine_is_busy() -> None:
    gate = GatedRun()
    async with serve_in_process(gate) as server:
        running = post(server, inputs="hello")
        await asyncio.to_thread(gate.entered.acquire)
        answers = [await server.client.get(path) for path in ("/livez", "/readyz", "/health", "/metrics")]
        gate.release()
        await running
    assert [answer.status_code for answer in answers] == [200] * 4
