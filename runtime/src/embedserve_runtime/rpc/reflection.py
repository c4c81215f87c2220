"""Serves reflection under both of its names: `grpc.reflection.v1`, and `grpc.reflection.v1alpha` for older clients.

The library has only the second. Messages and method of both are the same except for the package's name, so one servicer
answers under both, and the file that describes the first is derived from that of the second.
"""

from __future__ import annotations

from collections.abc import Iterable

import grpc
from google.protobuf import descriptor_pool, text_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc import aio
from grpc_reflection.v1alpha import reflection, reflection_pb2

V1ALPHA = reflection.SERVICE_NAME
V1 = V1ALPHA.replace("v1alpha", "v1")
NAMES = (V1, V1ALPHA)


def add_reflection(server: aio.Server, services: Iterable[str]) -> None:
    """Describe `services` and reflection itself to clients of `server`."""
    _describe_v1()
    servicer = reflection.aio.ReflectionServicer((*services, *NAMES))
    method = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        reflection_pb2.ServerReflectionRequest.FromString,
        reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": method}) for name in NAMES]
    )


def _describe_v1() -> None:
    """Add the file of `grpc.reflection.v1` to the pool that the servicer reads, unless another library has done so."""
    pool = descriptor_pool.Default()
    try:
        pool.FindServiceByName(V1)
    except KeyError:
        file = FileDescriptorProto()
        reflection_pb2.DESCRIPTOR.CopyToProto(file)
        file.options.ClearField("deprecated")
        text = text_format.MessageToString(file).replace("v1alpha", "v1")
        pool.Add(text_format.Parse(text, FileDescriptorProto()))
