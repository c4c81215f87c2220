"""A server without a model: everything but the engine is real, in a process whose CPU seconds can be asked for."""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from multiprocessing.connection import Connection

import numpy as np
import uvloop

from embedserve_runtime.api.app import create_app
from embedserve_runtime.api.context import ServerContext
from embedserve_runtime.api.memory import RequestMemory
from embedserve_runtime.config import BatchingSettings, ServerSettings
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.frontends.context import ConnectionMetrics, build_request_series
from embedserve_runtime.frontends.interpreter import tune_interpreter
from embedserve_runtime.scheduling.dispatcher import Dispatcher
from embedserve_runtime.scheduling.policy import Limits
from embedserve_runtime.server.http_server import HttpServer
from embedserve_runtime.service import InferenceService
from embedserve_runtime.service.loaded_model import LoadedModel
from embedserve_runtime.service.readiness import Readiness
from embedserve_runtime.telemetry.metrics import Metrics
from tests.support.in_process_server import build_page
from tests.support.tiny_models import build_card, build_tiny_tokenizer
from tests.support.tiny_runners import TinyRunner

DIMENSIONS = 384


class NullApplication:
    """The application over an engine that has its rows ready. Made inside a running loop."""

    def __init__(self) -> None:
        rows = np.random.default_rng(0).standard_normal((4096, DIMENSIONS), dtype=np.float32)

        def run(batch: PackedBatch) -> FloatArray:
            return rows[: len(batch.cu_seqlens) - 1]

        metrics = Metrics(build_request_series())
        limits = Limits(16_384, 1_000_000, 20_000)
        runner = TinyRunner(run)
        self.dispatcher = Dispatcher([runner], limits, clock=time.perf_counter, observer=metrics)
        self.metrics = metrics.requests
        readiness = Readiness()
        readiness.open(
            InferenceService(
                LoadedModel(build_card(dimensions=DIMENSIONS), limits, [runner.engine]),
                build_tiny_tokenizer(),
                self.dispatcher,
                BatchingSettings(),
                time.perf_counter,
            )
        )
        self.context = ServerContext(
            readiness, "null", self.metrics, build_page(metrics), RequestMemory(2**24, 2**28)
        )
        self.app = create_app(self.context, ServerSettings())


class NullServer:
    """A running one, as the load sees it. grpc_address: empty where it speaks HTTP alone."""

    def __init__(self, port: int, grpc_address: str, control: Connection) -> None:
        self.port = port
        self.grpc_address = grpc_address
        self._control = control

    def cpu_seconds(self) -> float:
        """That the process has taken so far."""
        self._control.send("cpu")
        seconds: float = self._control.recv()
        return seconds


@contextmanager
def null_server(*, with_grpc: bool = False) -> Iterator[NullServer]:
    sock = socket.create_server(("127.0.0.1", 0), backlog=1024)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_process, args=(sock, theirs, with_grpc), daemon=True)
    process.start()
    yield NullServer(sock.getsockname()[1], ours.recv(), ours)
    ours.send("stop")
    process.join()


def _process(sock: socket.socket, control: Connection, with_grpc: bool) -> None:
    tune_interpreter()
    uvloop.run(_serve(sock, control, with_grpc))


async def _serve(sock: socket.socket, control: Connection, with_grpc: bool) -> None:
    null = NullApplication()
    server = HttpServer(null.app, sock, ConnectionMetrics(null.metrics))
    async with AsyncExitStack() as stack:
        address = ""
        if with_grpc:
            # Imported here, since the library takes time and memory that a server without gRPC need not spend.
            from embedserve_runtime.rpc.server import RpcPorts, RpcServer

            rpc = RpcServer(null.context, RpcPorts("127.0.0.1", 0))
            address = (await stack.enter_async_context(rpc)).address
        control.send(address)
        loop = asyncio.get_running_loop()
        while await loop.run_in_executor(None, control.recv) == "cpu":
            control.send(time.process_time())
    await server.abort()
    null.dispatcher.close("done")
