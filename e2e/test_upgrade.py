"""The chart from the previous release to this one, and away: running pods keep serving, models stay on their volumes.

`charts/` beside this file has the chart of the previous release, packaged. Its operator is this one's: the test is
about the definition, the rights and what helm does with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster.kubectl import Kubectl
from e2e.cluster.lifecycle import Cluster
from e2e.cluster.polling import wait_until
from e2e.conftest import MakeService
from e2e.demo.partners import HUB_URL
from e2e.demo.release import Release
from e2e.services import TIMEOUT_S, Object, Service, hub_spec, operator_pods

(PREVIOUS,) = (Path(__file__).parent / "charts").glob("*.tgz")
DEFINITION = ("crd", "embeddingservices.embedserve.dev")


@pytest.fixture(scope="module")
def release(cluster: Cluster) -> Iterator[Release]:
    """The release that all tests use; whatever happens here, it is there afterwards."""
    chart_release = Release(cluster, HUB_URL)
    yield chart_release
    chart_release.install()


def schema(kubectl: Kubectl) -> Object:
    received = kubectl.get(*DEFINITION)
    assert received is not None
    versions: Object = received["spec"]["versions"][0]["schema"]
    return versions


def uids(service: Service) -> set[str]:
    return {pod["metadata"]["uid"] for pod in service.pods()}


def claims(service: Service) -> list[str]:
    return [child["metadata"]["uid"] for child in service.children("persistentvolumeclaims")]


def test_from_the_previous_release_to_this_one_and_away(
    release: Release, kubectl: Kubectl, service: MakeService
) -> None:
    plain, cached = service("plain"), service("cached")
    plain.apply(hub_spec())
    cached.apply(hub_spec(cache={"volume": {"size": "1Gi"}}))
    plain.wait_serving()
    cached.wait_serving()
    pods, volumes = uids(plain) | uids(cached), claims(cached)
    assert len(volumes) == 1

    # The state of a cluster that has the previous release, reached by the way back to it.
    release.install(chart=PREVIOUS)
    before = schema(kubectl)
    assert len(plain.embed("over the older chart")) == 1
    release.install()
    assert schema(kubectl) != before, "helm upgrades the definition"
    # A change that the upgraded operator has to make shows that it has been over all services.
    plain.apply(hub_spec(service={"annotations": {"after": "upgrade"}}))
    wait_until(
        "the new operator works",
        lambda: "after" in plain.child_named("service", "plain")["metadata"].get("annotations", {}),
        timeout_s=TIMEOUT_S,
    )
    plain.wait_serving()
    cached.wait_serving()
    assert uids(plain) | uids(cached) == pods, "no pod was restarted"

    release.uninstall()
    wait_until("no operator runs", lambda: not operator_pods(kubectl), timeout_s=TIMEOUT_S)
    assert uids(plain) | uids(cached) == pods, "pods serve on without an operator"
    assert len(plain.embed("still here")) == 1
    assert claims(cached) == volumes

    # Told not to keep the definition, all services go with it, and of models what says so.
    release.install({"crds.keep": "false"})
    doomed = service("gone")
    doomed.apply(hub_spec(cache={"volume": {"size": "1Gi", "whenDeleted": "Delete"}}))
    doomed.wait_serving()
    release.uninstall()
    wait_until("the definition is gone", lambda: kubectl.get(*DEFINITION) is None, timeout_s=TIMEOUT_S)
    wait_until("the pods are gone", lambda: not plain.pods() and not cached.pods(), timeout_s=TIMEOUT_S)
    wait_until("the claim that was to go is gone", lambda: not claims(doomed), timeout_s=TIMEOUT_S)
    assert claims(cached) == volumes, "models stay unless told otherwise"

    release.install()
    cached.apply(hub_spec(cache={"volume": {"size": "1Gi"}}))
    cached.wait_serving()
    assert claims(cached) == volumes, "and are found again"
    cached.delete()
