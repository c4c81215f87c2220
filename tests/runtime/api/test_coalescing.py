"""Equal inputs run once: in one request, in flight, and from the cache; nobody gets what was not his."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from embedserve_runtime.api.clients import ClientIdentifier
from embedserve_runtime.config import BatchingSettings
from embedserve_runtime.errors import EngineFailure
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch
from tests.support.in_process_server import InProcessServer, serve_in_process
from tests.support.tiny_runners import GatedRun, Run, build_mean_run

CACHE = BatchingSettings(cache_bytes=100_000, cache_seconds=60.0)


class Counting:
    """A runner that counts its inputs."""

    def __init__(self, run: Run | None = None) -> None:
        self._run = run or build_mean_run()
        self.inputs = 0

    def __call__(self, batch: PackedBatch) -> FloatArray:
        self.inputs += len(batch.lengths)
        return self._run(batch)


async def embed(server: InProcessServer, texts: Sequence[str], **fields: Any) -> httpx.Response:
    return await server.client.post("/embed", json={"inputs": [*texts], **fields})


async def read_reused(server: InProcessServer) -> dict[str, float]:
    page = (await server.client.get("/metrics")).text
    return {
        sample.labels["source"]: sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "embedserve_reused_inputs_total"
    }


@pytest.mark.parametrize("texts", [["a"] * 5, ["a", "b", "a", "c", "b"], [f"{n % 40}" for n in range(200)]])
async def test_a_text_that_a_request_has_twice_runs_once_and_is_answered_at_each_index(
    texts: list[str],
) -> None:
    counting = Counting()
    async with serve_in_process(counting) as server:
        together = (await embed(server, texts)).json()
        assert counting.inputs == len(set(texts))
        alone = {text: (await embed(server, [text])).json()[0] for text in set(texts)}
    np.testing.assert_allclose(together, [alone[text] for text in texts], rtol=1e-6)


async def test_requests_with_one_text_in_flight_run_it_once() -> None:
    gate = GatedRun()
    async with serve_in_process(gate) as server:
        first = asyncio.create_task(embed(server, ["same"]))
        await asyncio.to_thread(gate.entered.acquire)
        followers = [asyncio.create_task(embed(server, ["same"])) for _ in range(9)]
        different = asyncio.create_task(embed(server, ["other"]))
        for _ in range(2):
            gate.release()
        answers = [response.json() for response in await asyncio.gather(first, *followers)]
        await different
        assert await read_reused(server) == {"cache": 0.0, "in_flight": 9.0}
    assert sum(len(batch.lengths) for batch in gate.batches) == 2
    assert all(answer == answers[0] for answer in answers)


@pytest.mark.parametrize(
    "fields",
    [
        {"normalize": False},
        {"truncate": True},
        {"truncation_direction": "left"},
        {"dimensions": 2},
    ],
    ids=str,
)
async def test_another_option_is_another_input(fields: dict[str, Any]) -> None:
    counting = Counting()
    async with serve_in_process(counting, batching=CACHE) as server:
        await embed(server, ["text"])
        assert (await embed(server, ["text"], **fields)).status_code == 200
    assert counting.inputs == 2


async def test_when_the_first_goes_away_the_others_are_still_answered() -> None:
    gate = GatedRun()
    async with serve_in_process(gate) as server:
        first = asyncio.create_task(embed(server, ["same"]))
        await asyncio.to_thread(gate.entered.acquire)
        follower = asyncio.create_task(embed(server, ["same"]))
        while server.get_metric("embedserve_requests_in_flight") != 2:  # noqa: ASYNC110  # turns of the loop
            await asyncio.sleep(0)
        first.cancel()
        for _ in range(3):
            gate.release()
        assert (await follower).status_code == 200


async def test_a_text_that_fails_for_the_first_fails_for_the_others_with_an_error_of_their_own() -> None:
    def fail(batch: PackedBatch) -> FloatArray:
        raise EngineFailure("no")

    async with serve_in_process(fail) as server:
        answers = await asyncio.gather(*(embed(server, ["same"]) for _ in range(3)))
    assert [answer.status_code for answer in answers] == [500] * 3
    assert len({answer.headers["x-request-id"] for answer in answers}) == 3


async def test_a_short_request_does_not_wait_for_a_long_one_that_has_its_text() -> None:
    gate = GatedRun()
    async with serve_in_process(gate) as server:
        long = asyncio.create_task(embed(server, [f"text {n}" for n in range(100)]))
        await asyncio.to_thread(gate.entered.acquire)
        short = asyncio.create_task(embed(server, ["text 99"]))
        for _ in range(200):
            gate.release()
        await short
        await long
        assert (await read_reused(server))["in_flight"] == 0.0


async def test_inputs_that_ended_while_others_of_the_request_ran_are_there() -> None:
    gate = GatedRun()
    async with serve_in_process(gate) as server:
        first = asyncio.create_task(embed(server, ["one"]))
        await asyncio.to_thread(gate.entered.acquire)
        second = asyncio.create_task(embed(server, ["one", "two"]))
        while not server.dispatcher.queued_inputs:  # noqa: ASYNC110  # turns of the loop, no time
            await asyncio.sleep(0)
        gate.release()
        await first
        gate.release()
        assert (await second).status_code == 200


async def test_an_error_names_the_input_by_its_index_in_the_request() -> None:
    async with serve_in_process(batching=CACHE) as server:
        await embed(server, ["one", "two"])
        refused = await embed(server, ["one", "two", "", "three"])
    assert refused.status_code == 400
    assert "input 2" in refused.text


async def test_a_client_does_not_wait_in_the_queue_of_another() -> None:
    gate = GatedRun()
    async with serve_in_process(gate, clients=ClientIdentifier(header=b"x-tenant")) as server:

        async def send(tenant: str) -> int:
            headers = {"x-tenant": tenant}
            return (await server.client.post("/embed", json={"inputs": "same"}, headers=headers)).status_code

        first = asyncio.create_task(send("one"))
        await asyncio.to_thread(gate.entered.acquire)
        task = asyncio.create_task(send("other"))
        for _ in range(2):
            gate.release()
        assert (await first, await task) == (200, 200)
        assert (await read_reused(server))["in_flight"] == 0.0


async def test_a_cached_text_is_answered_without_running_until_its_time_is_over() -> None:
    counting, passed = Counting(), [0.0]
    async with serve_in_process(counting, batching=CACHE, clock=lambda: passed[0]) as server:
        first = await embed(server, ["one", "two"])
        repeated = await embed(server, ["two", "one", "three"])
        assert counting.inputs == 3
        assert await read_reused(server) == {"cache": 2.0, "in_flight": 0.0}
        np.testing.assert_array_equal(repeated.json()[:2], first.json()[::-1])
        passed[0] = 61.0
        await embed(server, ["one"])
        assert counting.inputs == 4


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/vertex", {"instances": [{"inputs": ["one"]}, {"inputs": ["two", "three"]}]}),
        ("/similarity", {"inputs": {"source_sentence": "one", "sentences": ["two", "three"]}}),
        ("/v1/score", {"query": "one", "documents": ["two", "three"]}),
    ],
)
async def test_the_reused_inputs_of_a_request_that_runs_in_parts_are_counted(
    path: str, body: dict[str, Any]
) -> None:
    async with serve_in_process(batching=CACHE) as server:
        for want in (0.0, 3.0):
            assert (await server.client.post(path, json=body)).status_code == 200
            assert await read_reused(server) == {"cache": want, "in_flight": 0.0}


async def test_no_client_can_tell_from_the_cache_what_another_has_sent() -> None:
    counting = Counting()
    async with serve_in_process(
        counting, batching=CACHE, clients=ClientIdentifier(header=b"x-tenant")
    ) as server:
        for tenant, want_runs in (("one", 1), ("another", 2), ("one", 2), ("another", 2)):
            await server.client.post("/embed", json={"inputs": "same"}, headers={"x-tenant": tenant})
            assert counting.inputs == want_runs


async def test_the_cache_keeps_within_its_bytes() -> None:
    counting = Counting()
    settings = BatchingSettings(cache_bytes=10_000)
    async with serve_in_process(counting, batching=settings) as server:
        for number in range(100):
            await embed(server, [f"text {number}"])
        await embed(server, ["text 99"])
        assert counting.inputs == 100
        await embed(server, ["text 0"])
        assert counting.inputs == 101


async def test_what_a_request_must_not_ask_is_refused_though_its_text_is_cached() -> None:
    async with serve_in_process(batching=CACHE) as server:
        await embed(server, ["text"])
        other_space = {"x-embedserve-vector-space": "vs2-00000000000000000000"}
        refused = await server.client.post("/embed", json={"inputs": "text"}, headers=other_space)
        assert refused.status_code == 409


async def test_usage_counts_the_tokens_of_inputs_that_did_not_run() -> None:
    async with serve_in_process(batching=CACHE) as server:
        body = {"input": ["hello", "world", "hello"], "model": "tiny"}
        first = (await server.client.post("/v1/embeddings", json=body)).json()
        repeated = (await server.client.post("/v1/embeddings", json=body)).json()
    assert first["usage"] == repeated["usage"]
    assert first["data"] == repeated["data"]
