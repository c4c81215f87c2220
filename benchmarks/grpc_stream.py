"""A gRPC stream of 10,000 texts against batches over HTTP, without a model: the server of `null_server`.

    python -m benchmarks.grpc_stream [--texts 10000] [--batch 32]

Prints texts/s as the client has them, and CPU microseconds of the server's process a text, each with its ratio to the
first line. Four calls or connections at a time, so that no way waits for its client alone.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import grpc
import numpy as np
import orjson

from benchmarks.command_line import parser_of
from benchmarks.null_server import NullServer, null_server
from embedserve_runtime.rpc.generated import embedserve_pb2, tei_pb2
from tests.support.tiny_models import WORDS

PARALLEL = 4
JSON = {"content-type": "application/json"}
BYTES = JSON | {"accept": "application/octet-stream"}


class Rate(NamedTuple):
    texts_per_second: float
    cpu_seconds: float


# Has one share of the texts embedded; returns how many vectors came back.
Way = Callable[[NullServer, Sequence[str]], int]


def batches(texts: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for start in range(0, len(texts), size):
        yield texts[start : start + size]


def by_http(path: str, headers: dict[str, str], batch: int, server: NullServer, texts: Sequence[str]) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
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


def by_tei_stream(server: NullServer, texts: Sequence[str]) -> int:
    with grpc.insecure_channel(server.grpc_address) as channel:
        embed = channel.stream_stream(
            "/tei.v1.Embed/EmbedStream",
            tei_pb2.EmbedRequest.SerializeToString,
            tei_pb2.EmbedResponse.FromString,
        )
        return sum(
            bool(answer.embeddings) for answer in embed(tei_pb2.EmbedRequest(inputs=text) for text in texts)
        )


def by_own_stream(batch: int, server: NullServer, texts: Sequence[str]) -> int:
    with grpc.insecure_channel(server.grpc_address) as channel:
        encode = channel.stream_stream(
            "/embedserve.v1.Embeddings/EncodeStream",
            embedserve_pb2.EncodeRequest.SerializeToString,
            embedserve_pb2.EncodeResponse.FromString,
        )
        requests = (embedserve_pb2.EncodeRequest(texts=part) for part in batches(texts, batch))
        return sum(answer.dense.rows for answer in encode(requests))


def measure(way: Way, server: NullServer, texts: Sequence[str]) -> Rate:
    shares = [texts[index::PARALLEL] for index in range(PARALLEL)]
    way(server, texts[:200])
    before, started = server.cpu_seconds(), time.perf_counter()
    with ThreadPoolExecutor(PARALLEL) as threads:
        answered = sum(threads.map(partial(way, server), shares))
    took = time.perf_counter() - started
    assert answered == len(texts), "every text has its vector"
    return Rate(answered / took, server.cpu_seconds() - before)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--texts", type=int, default=10_000)
    parser.add_argument(
        "--batch", type=int, default=32, help="texts of a request, and of a message of our own"
    )
    options = parser.parse_args()
    texts = [" ".join(WORDS[(index + k) % len(WORDS)] for k in range(10)) for index in range(options.texts)]
    batch = options.batch
    ways: dict[str, Way] = {
        f"HTTP /embed, {batch} texts": partial(by_http, "/embed", JSON, batch),
        f"HTTP /v1/encode as bytes, {batch} texts": partial(by_http, "/v1/encode", BYTES, batch),
        "HTTP /embed, one text": partial(by_http, "/embed", JSON, 1),
        "gRPC tei.v1 EmbedStream, one text a message": by_tei_stream,
        f"gRPC embedserve.v1 EncodeStream, {batch} texts a message": partial(by_own_stream, batch),
    }
    first: Rate | None = None
    with null_server(with_grpc=True) as server:
        for name, way in ways.items():
            rate = measure(way, server, texts)
            first = first or rate
            faster = rate.texts_per_second / first.texts_per_second
            dearer = rate.cpu_seconds / first.cpu_seconds
            print(
                f"{name:58}{rate.texts_per_second:9,.0f} texts/s ({faster:5.2f}), "
                f"{rate.cpu_seconds / len(texts) * 1e6:6.0f} us of CPU a text ({dearer:5.2f})"
            )


if __name__ == "__main__":
    main()
