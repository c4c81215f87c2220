"""gRPC through the Service, of a model that is served from a volume: the same vectors as over HTTP."""

from __future__ import annotations

import json
import sys

import pytest

from e2e.cluster.kubectl import Kubectl
from e2e.cluster.shell import in_node, run
from e2e.conftest import MakeService
from e2e.services import Object, hub_spec

PORT = 8083
TEXTS = ("One connection is enough.", "Eine Verbindung genügt.")
SERVING = 1


def test_a_grpc_client_gets_the_vectors_of_the_service(
    service: MakeService, kubectl: Kubectl, namespace: str
) -> None:
    embsvc = service("grpc")
    embsvc.apply(
        hub_spec(
            cache={"volume": {"size": "1Gi", "whenDeleted": "Delete"}}, service={"grpcPort": PORT}, replicas=2
        )
    )
    status = embsvc.wait_serving()["status"]
    assert status["endpoint"]["grpc"].endswith(f":{PORT}")
    inside: Object | None = kubectl.get("service", "grpc", "--namespace", namespace)
    assert inside is not None
    assert PORT in [port["port"] for port in inside["spec"]["ports"]]

    address = f"{inside['spec']['clusterIP']}:{PORT}"
    reply = json.loads(
        run(in_node([sys.executable, "-m", "e2e.grpc_client", address, *TEXTS]), timeout_s=120)
    )
    assert reply["status"] == SERVING
    for got, want in zip(reply["vectors"], embsvc.embed(*TEXTS), strict=True):
        assert got == pytest.approx(want, abs=1e-5)
    embsvc.delete()
