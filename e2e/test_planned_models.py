"""Where no cache is filled before the first pods, a Job reads how large the model is, and the pods ask for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.cluster.lifecycle import Cluster
from e2e.conftest import MakeService
from e2e.demo.partners import HUB_URL
from e2e.demo.release import Release
from e2e.services import hub_spec


@pytest.fixture
def release(cluster: Cluster) -> Iterator[Release]:
    """The release with `planModels`, and afterwards as it was."""
    chart_release = Release(cluster, HUB_URL)
    chart_release.install({"planModels": "true"})
    yield chart_release
    chart_release.install()


def test_the_first_pods_ask_for_the_memory_and_the_storage_of_their_model(
    release: Release, service: MakeService
) -> None:
    planned = service("planned")
    planned.apply(hub_spec())
    status = planned.wait_serving()["status"]
    assert status["plan"]["state"] == "Succeeded"
    assert status["plan"]["sizeBytes"] == status["model"]["sizeBytes"]
    deployment = planned.child("deployments")
    assert deployment["metadata"]["generation"] == 1, "its template is that of the first pods"
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    for amounts in (container["resources"]["limits"], container["resources"]["requests"]):
        assert {"memory", "ephemeral-storage"} <= amounts.keys()
    assert len(planned.embed("as large as was planned")) == 1
    planned.delete()
