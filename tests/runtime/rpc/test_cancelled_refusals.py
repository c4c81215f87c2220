"""A call that its client cancels while the server refuses it, over a real channel."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import grpc
import pytest
from grpc import aio

from embedserve_runtime.errors import Overloaded
from embedserve_runtime.rpc.calls import CallRecorder, GrpcContext
from tests.support.in_process_server import serve_in_process

SERVICE = "tei.v1.Embed"


async def test_a_call_cancelled_while_it_is_refused_ends_as_cancelled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun, may_refuse = asyncio.Event(), asyncio.Event()
    async with serve_in_process() as built:
        recorder = CallRecorder(built.context, SERVICE)

        async def refuse(_: bytes, context: GrpcContext) -> bytes:
            async with recorder.record_call(context):
                begun.set()
                await may_refuse.wait()
                raise Overloaded("the queue is full", 1.0)

        server = aio.server()
        handlers: dict[str, Any] = {"Embed": grpc.unary_unary_rpc_method_handler(refuse)}
        server.add_registered_method_handlers(SERVICE, handlers)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        with caplog.at_level(logging.DEBUG, "embedserve_runtime.rpc.calls"):
            async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                method: Any = channel.unary_unary(f"/{SERVICE}/Embed")
                call = method(b"")
                await begun.wait()
                call.cancel()
                may_refuse.set()
                # The event loop stands still while the library's threads end the call: the handler refuses it before
                # it learns of that. On a machine that takes longer the handler is cancelled, and the test sees less.
                time.sleep(0.2)  # noqa: ASYNC251
                with pytest.raises(asyncio.CancelledError):
                    await call
            await server.stop(None)
    calls = [record for record in caplog.records if record.getMessage() == "call"]
    assert [vars(record)["status"] for record in calls] == ["CANCELLED"]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
