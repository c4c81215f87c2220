"""A gRPC stream of 10,000 texts against batches over HTTP, without a model: the null engine of `http_layer`.

    python -m benchmarks.grpc_stream [--texts 10000] [--batch 32]

Prints texts/s as the client has them, and CPU microseconds of the server's process a text, each with its ratio to the
first line. Four calls or connections at a time, so that no way waits for its client alone.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import multiprocessing
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from typing import NamedTuple

import grpc
import numpy as np
import orjson
import uvloop

from benchmarks.http_layer import Null
from embedserve_runtime.frontends.setup import Watches, prepare_process
from embedserve_runtime.httpd.server import Server
from embedserve_runtime.rpc.generated import embedserve_pb2, tei_pb2
from embedserve_runtime.rpc.server import RpcPorts, RpcServer
from tests.runtime.serve_kit import WORDS

PARALLEL = 4
JSON = {"content-type": "application/json"}
BYTES = JSON | {"accept": "application/octet-stream"}


class Ports(NamedTuple):
    http: int
    grpc: str


class Rate(NamedTuple):
    texts_per_second: float
    cpu_seconds: float


# Has one share of the texts embedded; returns how many vectors came back.
Way = Callable[[Ports, Sequence[str]], int]


def serve(sock: socket.socket, control: Connection) -> None:
    prepare_process()
    uvloop.run(_serve(sock, control))


async def _serve(sock: socket.socket, control: Connection) -> None:
    null = Null()
    sock.setblocking(False)
    server = Server(null.app, sock, Watches(null.metrics), null.app.quick)
    async with RpcServer(null.around, "null", RpcPorts("127.0.0.1", 0)) as rpc:
        control.send(rpc.address)
        loop = asyncio.get_running_loop()
        while await loop.run_in_executor(None, control.recv) == "cpu":
            control.send(time.process_time())
    server.abort()
    await server.finished()
    server.close()
    null.dispatcher.close("done")


def batches(texts: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for start in range(0, len(texts), size):
        yield texts[start : start + size]


def by_http(path: str, headers: dict[str, str], batch: int, ports: Ports, texts: Sequence[str]) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", ports.http)
    count = 0
    for part in batches(texts, batch):
        connection.request("POST", path, orjson.dumps({"inputs": part}), headers)
        answer = connection.getresponse()
        content = answer.read()
        if headers is BYTES:
            rows, columns = map(int, answer.headers["x-embedserve-shape"].split(","))
            count += len(np.frombuffer(content, dtype="<f4").reshape(rows, columns))
        else:
            count += len(orjson.loads(content))
    connection.close()
    return count


def by_tei_stream(ports: Ports, texts: Sequence[str]) -> int:
    with grpc.insecure_channel(ports.grpc) as channel:
        embed = channel.stream_stream(
            "/tei.v1.Embed/EmbedStream",
            tei_pb2.EmbedRequest.SerializeToString,
            tei_pb2.EmbedResponse.FromString,
        )
        return sum(
            bool(answer.embeddings) for answer in embed(tei_pb2.EmbedRequest(inputs=text) for text in texts)
        )


def by_own_stream(batch: int, ports: Ports, texts: Sequence[str]) -> int:
    with grpc.insecure_channel(ports.grpc) as channel:
        encode = channel.stream_stream(
            "/embedserve.v1.Embeddings/EncodeStream",
            embedserve_pb2.EncodeRequest.SerializeToString,
            embedserve_pb2.EncodeResponse.FromString,
        )
        requests = (embedserve_pb2.EncodeRequest(texts=part) for part in batches(texts, batch))
        return sum(answer.dense.rows for answer in encode(requests))


def measure(way: Way, ports: Ports, texts: Sequence[str], control: Connection) -> Rate:
    def cpu() -> float:
        control.send("cpu")
        seconds: float = control.recv()
        return seconds

    shares = [texts[place::PARALLEL] for place in range(PARALLEL)]
    way(ports, texts[:200])
    before, started = cpu(), time.perf_counter()
    with ThreadPoolExecutor(PARALLEL) as threads:
        answered = sum(threads.map(partial(way, ports), shares))
    took = time.perf_counter() - started
    assert answered == len(texts), "every text has its vector"
    return Rate(answered / took, cpu() - before)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=int, default=10_000)
    parser.add_argument(
        "--batch", type=int, default=32, help="texts of a request, and of a message of our own"
    )
    options = parser.parse_args()
    texts = [" ".join(WORDS[(place + k) % len(WORDS)] for k in range(10)) for place in range(options.texts)]
    batch = options.batch
    ways: dict[str, Way] = {
        f"HTTP /embed, {batch} texts": partial(by_http, "/embed", JSON, batch),
        f"HTTP /v1/encode as bytes, {batch} texts": partial(by_http, "/v1/encode", BYTES, batch),
        "HTTP /embed, one text": partial(by_http, "/embed", JSON, 1),
        "gRPC tei.v1 EmbedStream, one text a message": by_tei_stream,
        f"gRPC embedserve.v1 EncodeStream, {batch} texts a message": partial(by_own_stream, batch),
    }
    sock = socket.create_server(("127.0.0.1", 0), backlog=64)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(sock, theirs), daemon=True)
    process.start()
    ports = Ports(sock.getsockname()[1], ours.recv())
    first: Rate | None = None
    for name, way in ways.items():
        rate = measure(way, ports, texts, ours)
        first = first or rate
        print(
            f"{name:58}{rate.texts_per_second:9,.0f} texts/s ({rate.texts_per_second / first.texts_per_second:5.2f}), "
            f"{rate.cpu_seconds / len(texts) * 1e6:6.0f} us of CPU a text ({rate.cpu_seconds / first.cpu_seconds:5.2f})"
        )
    ours.send("stop")
    process.join()


if __name__ == "__main__":
    main()
