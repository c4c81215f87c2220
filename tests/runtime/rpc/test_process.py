"""gRPC in a real process: beside HTTP in the same process and beside front ends of their own, up to its end."""

from __future__ import annotations

import asyncio
import queue
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import httpx
import numpy as np
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2
from transformers import BertConfig, BertModel

from embedserve_runtime.rpc.generated import tei_pb2 as pb
from embedserve_runtime.rpc.health import SERVICES
from embedserve_runtime.rpc.server import RpcPorts
from tests.runtime.rpc.rpc_kit import served
from tests.support.models import tiny
from tests.support.server_process import ServerProcess, list_front_ends, start_server
from tests.support.tiny_models import build_card
from tests.support.tokenizers import with_minilm_tokenizer

pytestmark = pytest.mark.thorough

TEXT = "A vector is a list of numbers."
STATUSES = health_pb2.HealthCheckResponse
HEALTH = health_pb2.HealthCheckRequest.SerializeToString, health_pb2.HealthCheckResponse.FromString


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    config = BertConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=64,
    )
    tiny(folder, BertModel, config)
    return with_minilm_tokenizer(folder)


def messages(waiting: queue.SimpleQueue[str | None]) -> Iterator[pb.EmbedRequest]:
    while (text := waiting.get()) is not None:
        yield pb.EmbedRequest(inputs=text)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stream_goes_on_through_the_drain_and_the_process_ends_with_it(
    workers: int, model: Path, tmp_path: Path
) -> None:
    settings = {"server": {"grpc_port": 0, "http_workers": workers, "endpoint_drain_seconds": 0.0}}
    with (
        start_server(model, tmp_path, settings) as server,
        grpc.insecure_channel(server.wait_for_grpc_address()) as channel,
    ):
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch", *HEALTH)(health_pb2.HealthCheckRequest())
        assert next(watch).status == STATUSES.SERVING
        waiting: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        embed = channel.stream_stream(
            "/tei.v1.Embed/EmbedStream", pb.EmbedRequest.SerializeToString, pb.EmbedResponse.FromString
        )
        answers = embed(messages(waiting))
        waiting.put(TEXT)
        first = next(answers)
        (want,) = httpx.post(f"{server.address}/embed", json={"inputs": TEXT}).json()
        np.testing.assert_allclose(first.embeddings, want, atol=1e-6)

        server.stop(signal.SIGTERM)
        assert [status.status for status in watch] == [STATUSES.NOT_SERVING]
        while list_front_ends(server):
            pass  # until the front ends for HTTP have ended, which must not end the stream
        assert httpx.get(f"{server.management}/livez").status_code == 200
        waiting.put(TEXT)
        assert next(answers).embeddings == first.embeddings
        waiting.put(None)
        assert list(answers) == []
        assert server.wait_for_exit() == 0
    assert server.lines[-1]["message"] == "stopped"


@pytest.mark.parametrize("workers", [1, 2])
def test_health_is_not_serving_from_the_signal_on_while_calls_are_still_served(
    workers: int, model: Path, tmp_path: Path
) -> None:
    settings = {"server": {"grpc_port": 0, "http_workers": workers, "endpoint_drain_seconds": 600.0}}
    request = health_pb2.HealthCheckRequest()
    with (
        start_server(model, tmp_path, settings) as server,
        grpc.insecure_channel(server.wait_for_grpc_address()) as channel,
    ):
        check = channel.unary_unary("/grpc.health.v1.Health/Check", *HEALTH)
        watch_health = channel.unary_stream("/grpc.health.v1.Health/Watch", *HEALTH)
        embed = channel.unary_unary(
            "/tei.v1.Embed/Embed", pb.EmbedRequest.SerializeToString, pb.EmbedResponse.FromString
        )
        watch = watch_health(request)
        assert (next(watch).status, check(request).status) == (STATUSES.SERVING, STATUSES.SERVING)
        server.stop(signal.SIGTERM)
        assert next(watch).status == STATUSES.NOT_SERVING
        for service in ("", *SERVICES):
            inquiry = health_pb2.HealthCheckRequest(service=service)
            assert check(inquiry).status == STATUSES.NOT_SERVING
            late = watch_health(inquiry)
            assert next(late).status == STATUSES.NOT_SERVING
            late.cancel()
        assert embed(pb.EmbedRequest(inputs=TEXT)).embeddings
        server.stop(signal.SIGINT)  # ends the drain
        assert list(watch) == []
        assert server.wait_for_exit() == 0


async def test_a_process_that_is_told_of_another_space_passes_calls_on_from_its_first_port_and_not_from_its_second(
    model: Path, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # A space whose first digits are the port where it is found.
    other_space = f"vs2-{port:08d}{0:012}"
    card = replace(build_card(), vector_space=other_space)
    ports = {"grpc_port": 0, "pinned_grpc_port": 0, "space_grpc": "127.0.0.1:{space8}"}
    with start_server(model, tmp_path, {"server": ports}) as server:
        address = await asyncio.to_thread(server.wait_for_grpc_address)
        async with (
            served(card=card, ports=RpcPorts("127.0.0.1", 0, port)),
            aio.insecure_channel(address) as channel,
            aio.insecure_channel(pinned_of(server)) as pinned,
            httpx.AsyncClient(base_url=server.management) as management,
        ):
            own = await space_of(channel)
            (await management.put("/current", json={"vector_space": other_space})).raise_for_status()
            assert [await space_of(channel), await space_of(pinned)] == [other_space, own]
            (await management.put("/current", json={"vector_space": own})).raise_for_status()
            assert await space_of(channel) == own


def pinned_of(server: ServerProcess) -> str:
    prefix = "listening for gRPC by the space's own name on "
    (message,) = [line["message"] for line in server.lines if line["message"].startswith(prefix)]
    return str(message).removeprefix(prefix)


async def space_of(channel: aio.Channel) -> str:
    """Return the vector space of the answer to a call."""
    embed = channel.unary_unary(
        "/tei.v1.Embed/Embed", pb.EmbedRequest.SerializeToString, pb.EmbedResponse.FromString
    )
    call = embed(pb.EmbedRequest(inputs="hello"))
    assert (await call).embeddings
    return str(dict(await call.initial_metadata())["x-embedserve-vector-space"])
