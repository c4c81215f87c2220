"""ClientIdentifier are told apart by key or header, share the queue, and have rates of their own."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr

from embedserve_runtime.api.api_keys import ApiKeys
from embedserve_runtime.api.clients import MAX_NAME_LENGTH, ClientIdentifier
from embedserve_runtime.api.key_file import ANONYMOUS
from embedserve_runtime.config import ServerSettings
from embedserve_runtime.scheduling.clients import Client
from embedserve_runtime.scheduling.policy import Limits
from tests.support.in_process_server import InProcessServer, serve_in_process
from tests.support.tiny_runners import GatedRun

TWO_KEYS = ApiKeys([SecretStr("k1"), SecretStr("k2")])
ONE_KEY = ApiKeys([SecretStr("k1")])


@pytest.fixture
def named(tmp_path: Path) -> ApiKeys:
    (tmp_path / "keys").write_text("keys: [{name: search, key: k1, requests_per_minute: 5}]")
    return ApiKeys(file=tmp_path / "keys")


@pytest.mark.parametrize(
    ("clients", "headers", "want"),
    [
        (ClientIdentifier(), {}, None),
        (ClientIdentifier(ONE_KEY), {b"authorization": b"Bearer k1"}, None),
        (ClientIdentifier(TWO_KEYS), {b"authorization": b"Bearer k2"}, Client("key-2")),
        (ClientIdentifier(header=b"x-tenant"), {b"x-tenant": b"acme"}, Client("acme")),
        (ClientIdentifier(header=b"x-tenant"), {}, Client(ANONYMOUS)),
        (ClientIdentifier(header=b"x-tenant"), {b"x-tenant": b"a\tb"}, Client("a\\u0009b")),
        (ClientIdentifier(header=b"x-tenant"), {b"x-tenant": "Zoë".encode()}, Client("Zoë")),
        (ClientIdentifier(header=b"x-tenant"), {b"x-tenant": b"\xff"}, Client("\\xff")),
        (ClientIdentifier(requests_per_minute=3), {}, Client(ANONYMOUS, 3)),
        (
            ClientIdentifier(TWO_KEYS, b"x-tenant", tokens_per_minute=9),
            {b"authorization": b"Bearer k1", b"x-tenant": b"acme"},
            Client("acme", None, 9),
        ),
    ],
)
def test_who_a_request_is_from(
    clients: ClientIdentifier, headers: dict[bytes, bytes], want: Client | None
) -> None:
    assert clients.identify(headers, "/embed") == want


def test_the_name_of_a_key_and_its_rates_come_before_those_of_the_server(named: ApiKeys) -> None:
    clients = ClientIdentifier(named, b"x-tenant", requests_per_minute=100, tokens_per_minute=7)
    headers = {b"authorization": b"Bearer k1", b"x-tenant": b"somebody else"}
    assert clients.identify(headers, "/embed") == Client("search", 5, 7)


@pytest.mark.parametrize("names", [("é", "è"), ("x" * 300, "x" * 301), ("a\tb", "a\x01b")], ids=repr)
def test_two_names_are_two_clients_however_long_or_strange(names: tuple[str, str]) -> None:
    clients = ClientIdentifier(header=b"x-tenant")
    first, second = (clients.identify({b"x-tenant": name.encode()}, "/embed") for name in names)
    assert first is not None
    assert second is not None
    assert first.name != second.name
    assert len(first.name) <= MAX_NAME_LENGTH


async def embed(server: InProcessServer, tenant: str, texts: list[str]) -> int:
    response = await server.client.post("/embed", json={"inputs": texts}, headers={"x-tenant": tenant})
    return response.status_code


async def read_counts(server: InProcessServer, name: str) -> dict[tuple[str, ...], float]:
    page = (await server.client.get("/metrics")).text
    return {
        tuple(sample.labels.values()): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == name
    }


async def test_beyond_its_rate_a_client_is_told_when_to_come_back_and_others_are_served() -> None:
    clients = ClientIdentifier(header=b"x-tenant", requests_per_minute=2)
    async with serve_in_process(clients=clients) as server:
        assert [await embed(server, "greedy", ["a"]) for _ in range(3)] == [200, 200, 429]
        refused = await server.client.post(
            "/v1/embeddings", json={"input": "a", "model": "tiny"}, headers={"x-tenant": "greedy"}
        )
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "RateLimited"
        assert 1 <= int(refused.headers["retry-after"]) <= 30
        assert await embed(server, "other", ["a"]) == 200
        counts = await read_counts(server, "embedserve_client_requests_total")
        tokens = await read_counts(server, "embedserve_client_tokens_total")
    assert counts == {("greedy", ""): 2.0, ("greedy", "RateLimited"): 2.0, ("other", ""): 1.0}
    assert tokens[("greedy",)] == 2 * tokens[("other",)] > 0


async def test_a_client_that_floods_the_queue_leaves_room_for_another() -> None:
    gate = GatedRun()
    limits = Limits(batch_tokens=16, queue_tokens=10_000, queue_inputs=40)
    async with serve_in_process(gate, clients=ClientIdentifier(header=b"x-tenant"), limits=limits) as server:
        flood = [asyncio.create_task(embed(server, "greedy", [f"text {n}"])) for n in range(60)]
        await asyncio.to_thread(gate.entered.acquire)
        await asyncio.wait(flood, return_when=asyncio.FIRST_COMPLETED)
        small = asyncio.create_task(embed(server, "small", ["one", "two"]))
        for _ in range(70):
            gate.release()
        assert await small == 200
        statuses = await asyncio.gather(*flood)
    assert statuses.count(429) >= 15, "no more than half of the queue is one client's"
    assert statuses.count(200) >= 15


async def test_without_a_header_or_several_keys_nobody_is_told_apart() -> None:
    async with serve_in_process() as server:
        assert await embed(server, "somebody", ["a"]) == 200
        assert await read_counts(server, "embedserve_client_requests_total") == {}


INSTANCES = [{"inputs": [word]} for word in ("one", "two", "three", "four", "five")]
PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "instances": ("/vertex", {"instances": INSTANCES}),
    "a score of queries and documents": (
        "/v1/score",
        {"query": "question", "documents": ["first", "second"]},
    ),
    "a comparison": ("/similarity", {"inputs": {"source_sentence": "question", "sentences": ["a", "b"]}}),
}


@pytest.mark.parametrize(("path", "body"), PARTS.values(), ids=PARTS.keys())
async def test_a_request_that_runs_in_parts_counts_as_one(path: str, body: dict[str, Any]) -> None:
    async with serve_in_process(
        clients=ClientIdentifier(header=b"x-tenant", requests_per_minute=2)
    ) as server:
        statuses = [
            (await server.client.post(path, json=body, headers={"x-tenant": "acme"})).status_code
            for _ in range(3)
        ]
        assert statuses == [200, 200, 429]
        counts = await read_counts(server, "embedserve_client_requests_total")
    assert counts[("acme", "")] == 2


async def test_the_tokens_of_all_parts_of_a_request_count() -> None:
    async with serve_in_process(clients=ClientIdentifier(header=b"x-tenant")) as server:
        await server.client.post("/vertex", json={"instances": INSTANCES}, headers={"x-tenant": "parts"})
        await embed(server, "whole", [instance["inputs"][0] for instance in INSTANCES])
        tokens = await read_counts(server, "embedserve_client_tokens_total")
        inputs = await read_counts(server, "embedserve_client_inputs_total")
    assert tokens[("parts",)] == tokens[("whole",)] > 0
    assert inputs == {("parts",): 5.0, ("whole",): 5.0}


async def test_the_log_of_a_request_names_its_client(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        async with serve_in_process(
            clients=ClientIdentifier(header=b"x-tenant"), settings=ServerSettings(access_log=True)
        ) as server:
            await embed(server, "acme", ["a"])
    assert [record.client for record in caplog.records if record.getMessage() == "request"] == ["acme"]  # type: ignore[attr-defined]


async def test_each_of_equal_requests_in_flight_is_held_against_the_rates_and_counted() -> None:
    gate = GatedRun()
    clients = ClientIdentifier(header=b"x-tenant", requests_per_minute=4)
    async with serve_in_process(gate, clients=clients) as server:
        first = asyncio.create_task(embed(server, "a", ["same text"]))
        await asyncio.to_thread(gate.entered.acquire)
        followers = [asyncio.create_task(embed(server, "a", ["same text"])) for _ in range(9)]
        while server.get_metric("embedserve_requests_in_flight") != 10:  # noqa: ASYNC110  # turns of the loop
            await asyncio.sleep(0)
        gate.release()
        statuses = await asyncio.gather(first, *followers)
        requests = await read_counts(server, "embedserve_client_requests_total")
        inputs = await read_counts(server, "embedserve_client_inputs_total")
        tokens = await read_counts(server, "embedserve_client_tokens_total")
    assert (statuses.count(200), statuses.count(429)) == (4, 6)
    assert len(gate.batches) == 1
    assert requests == {("a", ""): 4.0, ("a", "RateLimited"): 6.0}
    assert inputs == {("a",): 4.0}
    assert tokens == {("a",): 4.0 * sum(gate.batches[0].lengths)}


@pytest.mark.parametrize("count", [3, 200])
async def test_a_text_that_a_request_has_several_times_is_counted_each_time(count: int) -> None:
    async with serve_in_process(clients=ClientIdentifier(header=b"x-tenant")) as server:
        await embed(server, "once", ["foo bar"])
        await embed(server, "often", ["foo bar"] * count)
        inputs = await read_counts(server, "embedserve_client_inputs_total")
        tokens = await read_counts(server, "embedserve_client_tokens_total")
    assert inputs[("often",)] == count
    assert tokens[("often",)] == count * tokens[("once",)]


async def test_repeats_of_a_text_are_held_against_the_tokens_a_minute() -> None:
    clients = ClientIdentifier(header=b"x-tenant", tokens_per_minute=20)
    async with serve_in_process(clients=clients) as server:
        assert await embed(server, "a", ["foo"] * 4) == 200
        assert await embed(server, "a", ["foo"] * 4) == 429
