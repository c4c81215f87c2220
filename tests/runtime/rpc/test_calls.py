"""The surroundings of calls: statuses, keys, bounds, deadlines, cancellation, order of streams, counting."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from grpc import StatusCode, aio
from pydantic import SecretStr

from embedserve_runtime.api.api_keys import ApiKeys
from embedserve_runtime.api.clients import ClientIdentifier
from embedserve_runtime.api.memory import RequestMemory
from embedserve_runtime.config import BatchingSettings
from embedserve_runtime.errors import ConfigError
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.rpc.server import RpcPorts, RpcServer
from embedserve_runtime.scheduling.policy import Limits
from tests.runtime.rpc.rpc_kit import Served, served, until
from tests.support.tiny_models import WORDS, build_classifier_card
from tests.support.tiny_runners import GatedRun

EMBED, STREAM = "tei.v1.Embed/Embed", "tei.v1.Embed/EmbedStream"


def not_finite(batch: PackedBatch) -> FloatArray:
    return np.full((len(batch.lengths), 8), np.nan, dtype=np.float32)


def failing(_: PackedBatch) -> FloatArray:
    raise RuntimeError("secret of the engine")


class Refused(NamedTuple):
    """A server's settings, a call, and how it is refused."""

    options: Mapping[str, Any]
    path: str
    fields: Mapping[str, Any]
    status: StatusCode
    reason: str
    message: str


REFUSED: dict[str, Refused] = {
    "nothing to embed": Refused({}, EMBED, {}, StatusCode.INVALID_ARGUMENT, "EmptyInput", "input 0 is empty"),
    "too long": Refused(
        {},
        EMBED,
        {"inputs": "a " * 40},
        StatusCode.INVALID_ARGUMENT,
        "InputTooLong",
        "set `truncate` to true",
    ),
    "no such prompt": Refused(
        {},
        EMBED,
        {"inputs": "a", "prompt_name": "none"},
        StatusCode.INVALID_ARGUMENT,
        "UnknownPrompt",
        "does not exist",
    ),
    "too many dimensions": Refused(
        {},
        EMBED,
        {"inputs": "a", "dimensions": 9},
        StatusCode.INVALID_ARGUMENT,
        "InvalidInput",
        "between 1 and 8",
    ),
    "another kind of model": Refused(
        {},
        "tei.v1.Rerank/Rerank",
        {"query": "a", "texts": ["b"]},
        StatusCode.FAILED_PRECONDITION,
        "WrongModelKind",
        "not a re-ranker",
    ),
    "no texts to rank": Refused(
        {"card": build_classifier_card("LABEL_0")},
        "tei.v1.Rerank/Rerank",
        {"query": "a"},
        StatusCode.INVALID_ARGUMENT,
        "EmptyInput",
        "`texts` cannot be empty",
    ),
    "three texts of a pair": Refused(
        {"card": build_classifier_card("bad", "good")},
        "tei.v1.Predict/PredictPair",
        {"inputs": ["a", "b", "c"]},
        StatusCode.INVALID_ARGUMENT,
        "InvalidInput",
        "got 3",
    ),
    "too many texts": Refused(
        {"card": build_classifier_card("LABEL_0"), "batching": BatchingSettings(max_client_batch_size=2)},
        "tei.v1.Rerank/Rerank",
        {"query": "a", "texts": ["b"] * 3},
        StatusCode.INVALID_ARGUMENT,
        "BatchTooLarge",
        "batch size 3",
    ),
    "no room in memory": Refused(
        {"memory": RequestMemory(4096, 1)},
        EMBED,
        {"inputs": "a"},
        StatusCode.RESOURCE_EXHAUSTED,
        "Overloaded",
        "being worked on",
    ),
    "loading": Refused(
        {"ready": False}, EMBED, {"inputs": "a"}, StatusCode.UNAVAILABLE, "NotReady", "being loaded"
    ),
    "the engine failed": Refused(
        {"run": failing},
        EMBED,
        {"inputs": "a"},
        StatusCode.FAILED_PRECONDITION,
        "EngineFailure",
        "the engine failed",
    ),
    "not a number": Refused(
        {"run": not_finite},
        EMBED,
        {"inputs": "a"},
        StatusCode.FAILED_PRECONDITION,
        "NotFinite",
        "not a finite number",
    ),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
async def test_a_call_is_refused_by_status_with_the_reason_in_the_metadata(case: Refused) -> None:
    async with served(**case.options) as server:
        status, message, trailers = await server.client.refusal(
            case.path, (("x-request-id", "mine"),), **case.fields
        )
    assert (status, trailers["x-embedserve-reason"]) == (case.status, case.reason)
    assert trailers["x-request-id"] == "mine"
    assert case.message in message
    assert "secret" not in message
    assert ("grpc-retry-pushback-ms" in trailers) == (status is StatusCode.RESOURCE_EXHAUSTED)


async def test_another_vector_space_than_the_metadata_names_is_refused() -> None:
    async with served() as server:
        status, message, _ = await server.client.refusal(
            EMBED, (("x-embedserve-vector-space", "vs2-other"),), inputs="a"
        )
    assert status is StatusCode.FAILED_PRECONDITION
    assert "vs2-other" in message


async def test_a_message_over_the_bound_is_refused_before_it_is_read() -> None:
    async with served(memory=RequestMemory(2000, 2**20)) as server:
        status, _, _ = await server.client.refusal(EMBED, inputs="a" * 2100)
        assert status is StatusCode.RESOURCE_EXHAUSTED
        assert (await server.client.ask(EMBED, inputs="a")).embeddings


async def test_a_stream_for_one_answer_is_bounded_as_one_request_is() -> None:
    async with served(card=build_classifier_card("LABEL_0"), memory=RequestMemory(2000, 2**20)) as server:
        path = "tei.v1.Rerank/RerankStream"
        call = server.client.call(path)
        message = server.client.message(path, {"query": "a", "text": "b" * 900})
        with pytest.raises(aio.AioRpcError) as caught:
            await call(message for _ in range(3))
        assert caught.value.code() is StatusCode.INVALID_ARGUMENT
        assert server.bench.context.memory.pending == 0


async def test_messages_of_a_stream_for_one_answer_are_cut_alike() -> None:
    async with served(card=build_classifier_card("LABEL_0")) as server:
        path = "tei.v1.Rerank/RerankStream"
        messages = [server.client.message(path, {"text": "b", "truncate": cut}) for cut in (True, False)]
        with pytest.raises(aio.AioRpcError) as caught:
            await server.client.call(path)(iter(messages))
    assert caught.value.code() is StatusCode.INVALID_ARGUMENT


KEY = "a-key"
GIVEN = {
    "none": ((), StatusCode.UNAUTHENTICATED),
    "wrong": ((("authorization", "Bearer other"),), StatusCode.UNAUTHENTICATED),
    "wrong before right": (
        (("authorization", "Bearer other"), ("authorization", f"Bearer {KEY}")),
        StatusCode.UNAUTHENTICATED,
    ),
    "right": ((("authorization", f"Bearer {KEY}"),), StatusCode.OK),
}


@pytest.mark.parametrize(("metadata", "want"), GIVEN.values(), ids=GIVEN)
@pytest.mark.parametrize("path", [EMBED, STREAM])
async def test_keys_come_as_metadata(path: str, metadata: Any, want: StatusCode) -> None:
    async with served(clients=ClientIdentifier(ApiKeys([SecretStr(KEY)]))) as server:
        message = server.client.message(path, {"inputs": "a"})
        if path == STREAM:
            call = server.client.call(path)(metadata=metadata)
            if want is StatusCode.OK:
                # Where the call is refused meanwhile, the client library takes its failed write for the call's status.
                await call.write(message)
                await call.done_writing()
            reply = asyncio.ensure_future(call.read())
        else:
            call = server.client.call(path)(message, metadata=metadata)
            reply = asyncio.ensure_future(call)
        await asyncio.wait([reply])
        if reply.exception() is None and path == STREAM:
            assert await call.read() is aio.EOF
        assert await call.code() is want


async def test_a_stream_ends_with_the_key_that_it_was_begun_with(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"keys: [{{name: indexer, key: {KEY}, expires: 2030-01-01}}]")
    moments = [datetime(2029, 12, 31, tzinfo=UTC)]
    keys = ApiKeys(file=tmp_path / "keys", now=lambda: moments[-1])
    async with served(clients=ClientIdentifier(keys)) as server:
        call = server.client.call(STREAM)(metadata=(("authorization", f"Bearer {KEY}"),))
        await call.write(server.client.message(STREAM, {"inputs": "a"}))
        assert (await call.read()).embeddings
        moments.append(datetime(2030, 1, 1, tzinfo=UTC))
        await call.write(server.client.message(STREAM, {"inputs": "b"}))
        with pytest.raises(aio.AioRpcError) as caught:
            await call.read()
    assert caught.value.code() is StatusCode.UNAUTHENTICATED
    assert "'indexer' has expired" in (caught.value.details() or "")


async def test_messages_of_a_stream_wait_for_the_rate_in_their_order() -> None:
    clients = ClientIdentifier(header=b"x-tenant", requests_per_minute=600)
    async with served(clients=clients) as server:
        greedy = [server.client.message(STREAM, {"inputs": f"text {number}"}) for number in range(620)]
        call = server.client.call(STREAM)(iter(greedy), metadata=(("x-tenant", "acme"),))
        assert len([answer async for answer in call]) == 620
        labels = {"client": "acme", "reason": ""}
        admitted = server.bench.get_metric("embedserve_client_requests_total", labels)
        refused = server.bench.get_metric(
            "embedserve_client_requests_total", labels | {"reason": "RateLimited"}
        )
    assert admitted == 620
    # Two for each message that had to wait, and one for each that came before the first of them was refused.
    assert (refused or 0) <= 100


async def entered(run: GatedRun) -> None:
    await asyncio.to_thread(run.entered.acquire)


async def hold(server: Served, run: GatedRun) -> asyncio.Task[Any]:
    """A call that the engine is inside of."""
    task = asyncio.create_task(server.client.ask(EMBED, inputs="hello"))
    await entered(run)
    return task


async def test_a_deadline_that_passes_takes_queued_work_away() -> None:
    run = GatedRun()
    async with served(run) as server:
        held = await hold(server, run)
        with pytest.raises(aio.AioRpcError) as caught:
            await server.client.call(EMBED)(server.client.message(EMBED, {"inputs": "world"}), timeout=0.05)
        assert caught.value.code() is StatusCode.DEADLINE_EXCEEDED
        await until(lambda: server.bench.dispatcher.queued_inputs == 0)
        run.release()
        await held
    assert len(run.batches) == 1


async def test_the_timeout_of_the_metadata_holds_too() -> None:
    run = GatedRun()
    async with served(run) as server:
        held = await hold(server, run)
        status, message, _ = await server.client.refusal(
            EMBED, (("x-embedserve-timeout", "0.05"),), inputs="world"
        )
        run.release()
        await held
    assert status is StatusCode.DEADLINE_EXCEEDED
    assert "not answered within" in message


@pytest.mark.parametrize("path", [EMBED, STREAM])
async def test_work_of_a_cancelled_call_is_not_run(path: str) -> None:
    run = GatedRun()
    async with served(run) as server:
        held = await hold(server, run)
        messages = [server.client.message(path, {"inputs": f"world {number}"}) for number in range(20)]
        call = server.client.call(path)(iter(messages) if path == STREAM else messages[0])
        expected = len(messages) if path == STREAM else 1
        if path == EMBED:
            waiting = asyncio.ensure_future(call)
        await until(lambda: server.bench.dispatcher.queued_inputs == expected)
        call.cancel()
        await until(lambda: server.bench.dispatcher.queued_inputs == 0)
        if path == EMBED:
            with pytest.raises(asyncio.CancelledError):
                await waiting
        run.release()
        await held
        await until(lambda: server.bench.context.memory.pending == 0)
        cancelled = server.bench.get_metric(
            "embedserve_requests_total", {"route": "tei.v1.Embed", "status": "499"}
        )
    assert len(run.batches) == 1
    assert cancelled == expected


async def test_a_stream_of_a_thousand_texts_is_answered_in_order() -> None:
    texts = [
        " ".join(WORDS[(index * 7 + k) % len(WORDS)] for k in range(1 + index % 9)) for index in range(1000)
    ]
    async with served() as server:
        answers = await server.client.stream(STREAM, [{"inputs": text} for text in texts])
        want = (await server.bench.client.post("/embed", json={"inputs": texts})).json()
    got = np.array([list(answer.embeddings) for answer in answers])
    np.testing.assert_allclose(got, np.array(want), atol=1e-6)


async def test_a_stream_waits_where_a_single_call_is_refused() -> None:
    run = GatedRun()
    async with served(run, limits=Limits(4, 100_000, 3)) as server:
        held = await hold(server, run)
        messages = (server.client.message(STREAM, {"inputs": word}) for word in "bcdefg")
        call = server.client.call(STREAM)(messages)
        await until(lambda: server.bench.dispatcher.queued_inputs == 3)
        status, _, trailers = await server.client.refusal(EMBED, inputs="a")
        assert status is StatusCode.RESOURCE_EXHAUSTED
        assert int(trailers["grpc-retry-pushback-ms"]) > 0
        run.release()
        assert len([answer async for answer in call]) == 6
        await held


async def test_a_wrong_text_ends_its_stream_after_the_answers_before_it() -> None:
    async with served() as server:
        call = server.client.call(STREAM)(
            server.client.message(STREAM, {"inputs": text}) for text in ("a", "hello", "", "world")
        )
        assert (await call.read()).embeddings
        assert (await call.read()).embeddings
        with pytest.raises(aio.AioRpcError) as caught:
            await call.read()
    assert caught.value.code() is StatusCode.INVALID_ARGUMENT


async def test_messages_are_counted_as_requests_by_service_and_status() -> None:
    async with served() as server:
        await server.client.ask(EMBED, inputs="a")
        await server.client.stream(STREAM, [{"inputs": "a"}] * 3)
        await server.client.refusal(EMBED)
        labels = {"route": "tei.v1.Embed"}
        counts = [
            server.bench.get_metric("embedserve_requests_total", labels | {"status": status})
            for status in ("200", "400")
        ]
        inputs = server.bench.get_metric("te_embed_success")
        in_flight = server.bench.get_metric("embedserve_requests_in_flight")
    assert counts == [4, 1]
    assert (inputs, in_flight) == (4, 0)


async def test_a_port_that_is_taken_stops_the_start_by_name() -> None:
    async with served() as server:
        port = int(server.server.address.rpartition(":")[2])
        with pytest.raises(ConfigError, match=rf"cannot listen on 127\.0\.0\.1:{port} for gRPC"):
            RpcServer(server.bench.context, RpcPorts("127.0.0.1", port))
