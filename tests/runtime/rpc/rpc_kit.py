"""A server with a gRPC port in the test's own event loop, and a client that knows it by reflection only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc import aio
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from embedserve_runtime.rpc.server import RpcPorts, RpcServer
from tests.support.in_process_server import InProcessServer, serve_in_process

ANY_PORT = RpcPorts("127.0.0.1", 0)
Metadata = tuple[tuple[str, str], ...]


def serialized(message: Message) -> bytes:
    return message.SerializeToString()


@dataclass
class Reflected:
    """Calls methods with messages whose classes the server has described itself."""

    channel: aio.Channel
    pool: DescriptorPool
    services: Sequence[str]
    _calls: dict[str, Any] = field(default_factory=dict)

    def method(self, path: str) -> MethodDescriptor:
        service, _, name = path.rpartition("/")
        descriptor: MethodDescriptor = self.pool.FindServiceByName(service).methods_by_name[name]
        return descriptor

    def message(self, path: str, fields: Mapping[str, Any]) -> Message:
        return GetMessageClass(self.method(path).input_type)(**fields)

    def call(self, path: str) -> Any:
        """The library's callable of a method, as `service/method`, whatever its kind."""
        if path not in self._calls:
            method = self.method(path)
            kinds: dict[tuple[bool, bool], Callable[..., Any]] = {
                (False, False): self.channel.unary_unary,
                (False, True): self.channel.unary_stream,
                (True, False): self.channel.stream_unary,
                (True, True): self.channel.stream_stream,
            }
            make = kinds[method.client_streaming, method.server_streaming]
            answer = GetMessageClass(method.output_type)
            self._calls[path] = make(f"/{path}", serialized, answer.FromString)
        return self._calls[path]

    async def ask(self, path: str, metadata: Metadata = (), **fields: Any) -> Any:
        return await self.call(path)(self.message(path, fields), metadata=metadata)

    async def stream(self, path: str, requests: Iterable[Mapping[str, Any]]) -> list[Any]:
        call = self.call(path)(self.message(path, fields) for fields in requests)
        return [answer async for answer in call]

    async def refusal(
        self, path: str, metadata: Metadata = (), **fields: Any
    ) -> tuple[grpc.StatusCode, str, Mapping[str, Any]]:
        """Status, message and trailing metadata of a call that fails."""
        with pytest.raises(aio.AioRpcError) as caught:
            await self.ask(path, metadata, **fields)
        return caught.value.code(), caught.value.details() or "", dict(caught.value.trailing_metadata())


@dataclass(frozen=True)
class Served:
    bench: InProcessServer
    server: RpcServer
    client: Reflected


@asynccontextmanager
async def reflected(address: str) -> AsyncIterator[Reflected]:
    def read() -> tuple[DescriptorPool, Sequence[str]]:
        with grpc.insecure_channel(address) as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            pool = DescriptorPool(database)
            services = sorted(database.get_services())
            for name in services:
                pool.FindServiceByName(name)  # reads its file, and those that it needs
        return pool, services

    pool, services = await asyncio.to_thread(read)
    async with aio.insecure_channel(address) as channel:
        yield Reflected(channel, pool, services)


@asynccontextmanager
async def served(*arguments: Any, ports: RpcPorts = ANY_PORT, **options: Any) -> AsyncIterator[Served]:
    """Takes what `bench` takes, too."""
    async with (
        serve_in_process(*arguments, **options) as built,
        RpcServer(built.context, ports) as server,
        reflected(server.address) as client,
    ):
        yield Served(built, server, client)


def dictionary(message: Message) -> dict[str, Any]:
    """Return a message with all fields, named as in the .proto; those of the effort, which depend on the clock, left
    out."""
    fields: dict[str, Any] = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return {name: value for name, value in fields.items() if name not in ("metadata", "effort")}


async def until(condition: Callable[[], bool]) -> None:
    """Let the server and the client go on until the condition holds."""
    while not condition():  # noqa: ASYNC110  nobody sets an event where the server looks at a queue
        await asyncio.sleep(0)
