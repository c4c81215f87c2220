"""The chart of the last release, services under load, and this chart over it: who keeps a connection notices nothing.

Pods are replaced only where the image or the manifest of the pods changes, then service after service; an upgrade that
changes neither replaces none.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from e2e.cluster.lifecycle import Cluster
from e2e.cluster.polling import wait_until
from e2e.conftest import MakeService
from e2e.demo.earlier import EarlierRelease, load_earlier_release
from e2e.demo.partners import HUB_URL
from e2e.demo.release import Release
from e2e.load import Load, asking
from e2e.services import TIMEOUT_S, Object, Service, condition, hub_spec

pytestmark = pytest.mark.upgrade

FROM = "EMBEDSERVE_UPGRADE_FROM"
NAMES = ("one", "two", "three")
UPGRADE, TEMPLATE = "embedserve.dev/upgrade", "embedserve.dev/template"
IN_TURN = {"upgrade.maxConcurrent": "1"}


@pytest.fixture(scope="module")
def release(cluster: Cluster) -> Iterator[Release]:
    """The release that all tests use; whatever happens here, this chart is there afterwards."""
    chart_release = Release(cluster, HUB_URL)
    yield chart_release
    chart_release.install()


@pytest.fixture(scope="module")
def earlier(cluster: Cluster) -> EarlierRelease:
    commit = os.environ.get(FROM)
    assert commit, f"{FROM} names the commit that is upgraded from: run `make e2e-upgrade`"
    return load_earlier_release(cluster.images, commit)


def deployment(service: Service) -> Object:
    """The service's only Deployment."""
    return service.child("deployments")


def template(resource: Object) -> str:
    """The hash of a Deployment's pod template."""
    return str(resource["spec"]["template"]["metadata"]["annotations"][TEMPLATE])


def is_rolling(resource: Object) -> bool:
    return bool(resource["metadata"].get("annotations", {}).get(UPGRADE) == "Rolling")


def uids(service: Service) -> set[str]:
    return {pod["metadata"]["uid"] for pod in service.pods()}


def is_seen(resource: Object) -> bool:
    """Return whether an operator that takes turns has been over a Deployment and has nothing more to do with it."""
    annotations = resource["metadata"].get("annotations", {})
    return "embedserve.dev/generation" in annotations and not annotations.get(UPGRADE)


def list_deployments(services: list[Service]) -> list[Object]:
    """The Deployments of all services, as they are at one moment: of several requests the first may see a service
    whose turn is over when the next one sees another service in its turn.
    """
    names = ",".join(service.name for service in services)
    words = ("deployments", "--namespace", services[0].namespace)
    received = services[0].kubectl.get(*words, "--selector", f"embedserve.dev/service in ({names})")
    assert received is not None
    return list(received["items"])


def wait_upgraded(services: list[Service]) -> int:
    """Wait until the upgrade is over for all services; return the most that were seen to roll at a time."""
    most = 0

    def all_are_upgraded() -> bool:
        nonlocal most
        deployments = list_deployments(services)
        most = max(most, sum(is_rolling(deployment) for deployment in deployments))
        waiting = [service for service in services if condition(service.get(), "Upgrading") is not None]
        return not waiting and all(is_seen(deployment) for deployment in deployments)

    wait_until("all services are upgraded", all_are_upgraded, timeout_s=3 * TIMEOUT_S, every_s=0.5)
    return most


def check_load(loads: list[Load]) -> None:
    assert [load.failed for load in loads] == [[] for _ in loads]
    assert all(load.asked for load in loads), "requests were made"


@pytest.fixture
def services(release: Release, earlier: EarlierRelease, service: MakeService) -> Iterator[list[Service]]:
    """Services of two pods each, that the earlier release has made."""
    embsvcs = [service(name) for name in NAMES]
    release.install(chart=earlier.chart, images=(earlier.operator, earlier.runtime))
    for embsvc in embsvcs:
        embsvc.apply(hub_spec(replicas=2))
    for embsvc in embsvcs:
        embsvc.wait_serving()
    yield embsvcs
    for embsvc in embsvcs:
        embsvc.delete()


def test_from_the_last_release_to_this_one_under_load(release: Release, services: list[Service]) -> None:
    templates = {embsvc.name: template(deployment(embsvc)) for embsvc in services}
    pods = {embsvc.name: uids(embsvc) for embsvc in services}
    with ExitStack() as stack:
        loads = [
            stack.enter_context(asking(embsvc, threads=2, keeps_connections=True)) for embsvc in services
        ]
        release.install(IN_TURN)
        most = wait_upgraded(services)
        for embsvc in services:
            embsvc.wait_serving()
    check_load(loads)
    assert most <= 1, "one service at a time"
    for embsvc in services:
        if template(deployment(embsvc)) == templates[embsvc.name]:
            assert uids(embsvc) == pods[embsvc.name], "nothing of the pods has changed"
        else:
            assert not uids(embsvc) & pods[embsvc.name], "all pods are of the new template"

    # Another operator that makes the same of the manifests.
    pods = {embsvc.name: uids(embsvc) for embsvc in services}
    with ExitStack() as stack:
        loads = [
            stack.enter_context(asking(embsvc, threads=2, keeps_connections=True)) for embsvc in services
        ]
        release.install({**IN_TURN, "podAnnotations": '{"again": "yes"}'})
        embsvc = services[0]
        # A change that the new operator has to make shows that it works.
        embsvc.apply(hub_spec(replicas=2, service={"annotations": {"after": "upgrade"}}))
        wait_until(
            "the new operator works",
            lambda: "after" in embsvc.child_named("service", embsvc.name)["metadata"].get("annotations", {}),
            timeout_s=TIMEOUT_S,
        )
        wait_upgraded(services)
    check_load(loads)
    assert {embsvc.name: uids(embsvc) for embsvc in services} == pods, "no pod was restarted"
