"""`python -m e2e.grpc_client ADDRESS TEXT...`: health and vectors by gRPC, as a user's program gets them, as JSON."""

from __future__ import annotations

import json
import sys

import grpc
from grpc_health.v1 import health_pb2

from embedserve_runtime.rpc.generated import tei_pb2


def main(address: str, texts: list[str]) -> int:
    with grpc.insecure_channel(address) as channel:
        grpc.channel_ready_future(channel).result(timeout=60)
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        embed = channel.unary_unary(
            "/tei.v1.Embed/Embed",
            request_serializer=tei_pb2.EmbedRequest.SerializeToString,
            response_deserializer=tei_pb2.EmbedResponse.FromString,
        )
        status = check(health_pb2.HealthCheckRequest(), timeout=30).status
        requests = [tei_pb2.EmbedRequest(inputs=text, normalize=True) for text in texts]
        vectors = [list(embed(request, timeout=30).embeddings) for request in requests]
    print(json.dumps({"status": status, "vectors": vectors}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
