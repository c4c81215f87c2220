"""gRPC while the service's name stands for another vector space."""

from __future__ import annotations

from grpc import StatusCode

from tests.runtime.rpc.rpc_kit import served
from tests.runtime.serve_kit import SPACE

OTHER = "vs1-fedcba9876543210fedc"
EMBED = "tei.v1.Embed/Embed"
OWN = (("x-embedserve-vector-space", SPACE),)


async def test_a_call_by_a_name_that_leads_elsewhere_is_ended_once_clients_had_time_to_connect_anew() -> None:
    async with served() as server:
        client, readiness = server.client, server.bench.around.readiness
        readiness.current_space = OTHER
        assert await client.ask(EMBED, inputs="hello"), "it may be on a connection of before"
        server.server.part()
        code, message, _ = await client.refusal(EMBED, inputs="hello")
        assert (code, OTHER in message) == (StatusCode.UNAVAILABLE, True)
        assert await client.ask(EMBED, OWN, inputs="hello"), "asked for by the name of its space"
        assert (await client.refusal(EMBED, (("x-embedserve-vector-space", OTHER),), inputs="a"))[0] is (
            StatusCode.FAILED_PRECONDITION
        )
        readiness.current_space = SPACE
        assert await client.ask(EMBED, inputs="hello"), "the name has come back"
        readiness.current_space = OTHER
        assert await client.ask(EMBED, inputs="hello"), "and has gone again, just now"


async def test_the_space_of_every_answer_is_in_its_metadata() -> None:
    async with served() as server:
        call = server.client.call(EMBED)(server.client.message(EMBED, {"inputs": "hello"}))
        assert ("x-embedserve-vector-space", SPACE) in tuple(await call.initial_metadata())
        assert await call
