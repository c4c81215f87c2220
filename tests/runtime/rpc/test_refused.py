"""Messages and calls that are refused before they are work: with a message, counted, and without noise in the log."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, NamedTuple

import pytest
from grpc import StatusCode, aio
from pydantic import SecretStr

from embedserve_runtime.api.api_keys import ApiKeys
from embedserve_runtime.api.clients import ClientIdentifier
from embedserve_runtime.api.memory import RequestMemory
from tests.runtime.rpc.rpc_kit import Served, served
from tests.support.tiny_models import build_classifier_card

EMBED, STREAM, COLLECTED = "tei.v1.Embed/Embed", "tei.v1.Embed/EmbedStream", "tei.v1.Rerank/RerankStream"
BOUND = 2_000
# Field 1, two bytes that are no UTF-8.
NOT_UTF8 = b"\x0a\x02\xff\xfe"
NOT_PROTOBUF = b"not protobuf"
# One text, as `inputs` of an `EmbedRequest` and as `query` of a `RerankStreamRequest`.
FINE = b"\x0a\x05hello"


class Case(NamedTuple):
    """A server's settings, messages, and what comes of them. http_status: in the metrics."""

    messages: tuple[bytes, ...]
    code: StatusCode
    message: str
    http_status: str
    options: Mapping[str, Any] = {}
    method: str | None = None
    route: str | None = None


CASES = {
    "text that is no UTF-8": Case((NOT_UTF8,), StatusCode.INVALID_ARGUMENT, "UTF-8", "400"),
    "no protobuf": Case((NOT_PROTOBUF,), StatusCode.INVALID_ARGUMENT, "the message is no tei.v1.", "400"),
    "a little too large": Case(
        (b"\x0a\xd1\x0f" + b"a" * (BOUND + 1),),
        StatusCode.RESOURCE_EXHAUSTED,
        f"may have {BOUND}",
        "413",
        {"memory": RequestMemory(BOUND, 2**20)},
    ),
    "as large as the library allows by default": Case(
        (b"a" * 4 * 2**20,),
        StatusCode.RESOURCE_EXHAUSTED,
        f"may have {BOUND}",
        "413",
        {"memory": RequestMemory(BOUND, 2**20)},
    ),
    "no room": Case((FINE,), StatusCode.RESOURCE_EXHAUSTED, "", "429", {"memory": RequestMemory(BOUND, 1)}),
    "a wrong key": Case(
        (FINE,),
        StatusCode.UNAUTHENTICATED,
        "",
        "401",
        {"clients": ClientIdentifier(ApiKeys([SecretStr("a-key")]))},
    ),
    "a model that is being loaded": Case((FINE,), StatusCode.UNAVAILABLE, "", "503", {"ready": False}),
    "an unknown method": Case(
        (FINE,), StatusCode.UNIMPLEMENTED, "no method", "404", method="tei.v1.Embed/Nothing", route="other"
    ),
    "an unknown service": Case(
        (FINE,), StatusCode.UNIMPLEMENTED, "no method", "404", method="other.Service/Embed", route="other"
    ),
}


async def answers_to(server: Served, path: str, messages: Sequence[bytes]) -> AsyncIterator[bytes]:
    """The answers of a call with these messages, which is made as the method's kind wants it."""
    channel: Any = server.client.channel
    if path == STREAM:
        async for answer in channel.stream_stream(f"/{path}")(iter(messages)):
            yield answer
    elif path == COLLECTED:
        yield await channel.stream_unary(f"/{path}")(iter(messages))
    else:
        yield await channel.unary_unary(f"/{path}")(messages[0])


async def error_after(answers: AsyncIterator[bytes], count: int = 0) -> aio.AioRpcError:
    """The error that comes after so many answers."""
    for _ in range(count):
        assert await anext(answers)
    with pytest.raises(aio.AioRpcError) as caught:
        await anext(answers)
    return caught.value


@pytest.mark.parametrize("path", [EMBED, STREAM, COLLECTED])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_a_refused_call_gets_a_message_and_is_counted_once(
    case: Case, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = case.method or path
    async with served(card=build_classifier_card("LABEL_0"), **case.options) as server:
        with caplog.at_level(logging.WARNING):
            error = await error_after(answers_to(server, path, case.messages))
        labels = {"route": case.route or path.partition("/")[0]}
        counted = {
            status: server.bench.get_metric("embedserve_requests_total", labels | {"status": status})
            for status in ("200", "400", "401", "404", "413", "429", "499", "500", "503")
        }
        in_flight = server.bench.get_metric("embedserve_requests_in_flight")
        pending = server.bench.context.memory.pending
    assert error.code() is case.code
    assert case.message in (error.details() or "")
    assert {status for status, count in counted.items() if count} == {case.http_status}
    assert counted[case.http_status] == 1
    assert (in_flight, pending) == (0, 0)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert dict(error.trailing_metadata())["x-request-id"]


async def test_a_message_that_cannot_be_read_ends_its_stream_after_the_answers_before_it() -> None:
    async with served() as server:
        error = await error_after(answers_to(server, STREAM, [FINE, FINE, NOT_UTF8, FINE]), 2)
    assert error.code() is StatusCode.INVALID_ARGUMENT


async def test_a_call_that_ends_without_its_message_is_refused_and_counted() -> None:
    async with served() as server:
        channel: Any = server.client.channel
        with pytest.raises(aio.AioRpcError) as caught:
            await channel.stream_unary(f"/{EMBED}")(iter(()))
        counted = server.bench.get_metric(
            "embedserve_requests_total", {"route": "tei.v1.Embed", "status": "400"}
        )
    assert (caught.value.code(), counted) == (StatusCode.INVALID_ARGUMENT, 1)


async def test_a_message_that_the_library_does_not_receive_is_refused_and_counted() -> None:
    async with served(memory=RequestMemory(BOUND, 2**20)) as server:
        error = await error_after(answers_to(server, EMBED, [b"a" * 5 * 2**20]))
        counted = server.bench.get_metric(
            "embedserve_requests_total", {"route": "tei.v1.Embed", "status": "400"}
        )
        assert (await server.client.ask(EMBED, inputs="a")).embeddings
    assert (error.code(), counted) == (StatusCode.RESOURCE_EXHAUSTED, 1)
