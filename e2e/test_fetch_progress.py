"""While a slow hub sends a model, the resource says how far the fetch is, and is not written too often for it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.conftest import MakeService
from e2e.demo.partners import HUB_URL, ClientPod
from e2e.hub import samples
from e2e.hub.faults import FaultKind
from e2e.services import Object, Service, hub_spec

BYTES_PER_SECOND = 1_000_000
"""The rate of each connection: a model of 90 MB, fetched by three, takes half a minute."""
FAULTS = """
import json, sys, urllib.request as r
method, body = sys.argv[1], sys.argv[2].encode()
r.urlopen(r.Request(sys.argv[3] + "/_faults", data=body if method == "POST" else None, method=method))
"""


def tell_hub(client: ClientPod, method: str, fault: Object | None = None) -> None:
    client.run("python3", "-c", FAULTS, method, json.dumps(fault or {}), HUB_URL)


@pytest.fixture
def slow_hub(client: ClientPod) -> Iterator[None]:
    """Its weights come slowly."""
    path = "*/resolve/*/model.safetensors"
    tell_hub(client, "POST", {"kind": FaultKind.SLOW.value, "path": path, "amount": BYTES_PER_SECOND})
    yield
    tell_hub(client, "DELETE")


def followed(service: Service) -> list[dict[str, Any]]:
    """Return what the resource said of its fetch, each thing once, until it serves."""
    reports: list[dict[str, Any]] = []

    def serves(resource: Object) -> bool:
        fetching = resource.get("status", {}).get("model", {}).get("fetching")
        if fetching is not None and fetching not in reports:
            reports.append(fetching)
        return any(
            reported["type"] == "Ready" and reported["status"] == "True"
            for reported in resource["status"].get("conditions", [])
        )

    service.wait_for("serves", serves)
    return reports


@pytest.mark.parametrize(
    "cache", [{"volume": {"size": "1Gi", "whenDeleted": "Delete"}}, None], ids=["job", "pod"]
)
def test_the_status_says_how_far_a_slow_fetch_is(
    service: MakeService, cache: Object | None, slow_hub: None
) -> None:
    slow = service("slow-job" if cache else "slow-pod")
    began = time.monotonic()
    slow.apply(hub_spec() if cache is None else hub_spec(cache=cache))
    reports = followed(slow)
    took = time.monotonic() - began

    size = (samples.model_folder() / "model.safetensors").stat().st_size
    under_way = [
        report
        for report in reports
        if report["phase"] == "fetching" and 0 < report["bytesDone"] < report["bytesTotal"]
    ]
    assert len(under_way) >= 3
    assert all(report["bytesTotal"] > size for report in under_way[1:]), "the small files are counted too"
    assert [report["bytesDone"] for report in under_way] == sorted(
        report["bytesDone"] for report in under_way
    )
    assert any(report["bytesPerSecond"] > 0 and report["secondsRemaining"] > 0 for report in under_way)
    assert len(reports) <= took / 5 + 1, "one look in five seconds"

    model = slow.wait_serving()["status"]["model"]
    assert "fetching" not in model
    assert model["licence"] == "apache-2.0"
    assert model["sizeBytes"] > size
    slow.delete()
