"""An upgrade whose pods do not come up stops at the first service, is counted for the alert, and is taken back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from e2e.cluster.images import load_project_images
from e2e.cluster.kubectl import Kubectl
from e2e.cluster.lifecycle import Cluster
from e2e.conftest import MakeService
from e2e.demo.partners import HUB_URL, ClientPod
from e2e.demo.release import Release
from e2e.load import asking
from e2e.services import Object, Service, condition, hub_spec, leader

IN_TURN = {"upgrade.maxConcurrent": "1"}
_METRICS = """
import sys, urllib.request
print(urllib.request.urlopen(f"http://{sys.argv[1]}:8081/metrics", timeout=30).read().decode())
"""


@pytest.fixture
def release(cluster: Cluster) -> Iterator[Release]:
    chart_release = Release(cluster, HUB_URL)
    yield chart_release
    chart_release.install()


def uids(service: Service) -> set[str]:
    return {pod["metadata"]["uid"] for pod in service.pods()}


def upgrading(resource: Object) -> str | None:
    reported = condition(resource, "Upgrading")
    return None if reported is None else str(reported["reason"])


def count_failed(kubectl: Kubectl, client: ClientPod) -> float:
    """Return what the alert EmbedserveUpgradeFailed looks at, of the operator that leads."""
    page = client.run("python3", "-c", _METRICS, leader(kubectl)["status"]["podIP"])
    (line,) = [line for line in page.splitlines() if line.startswith("embedserve_operator_upgrades_failed ")]
    return float(line.rpartition(" ")[2])


def test_an_upgrade_that_fails_stops_at_one_service_and_is_taken_back(
    release: Release, service: MakeService, kubectl: Kubectl, client: ClientPod
) -> None:
    services = [service("one"), service("two")]
    release.install(IN_TURN)
    for embsvc in services:
        embsvc.apply(hub_spec(replicas=2))
    for embsvc in services:
        embsvc.wait_serving()
        embsvc.embed("the way is open")
    before = {embsvc.name: uids(embsvc) for embsvc in services}
    with asking(services[0]) as load, asking(services[1]) as other_load:
        operator, runtime = load_project_images(release.cluster.images)
        # A name that no kubelet can make an image of, so that nothing is tried again.
        wrong = replace(runtime, content_reference=f"{runtime.content_reference.rpartition(':')[0]}:no/tag")
        release.install(IN_TURN, images=(operator, wrong))
        reasons = [upgrading(embsvc.wait_for("is failed or stopped", is_over)) for embsvc in services]
        assert sorted(map(str, reasons)) == ["UpgradeFailed", "UpgradeStopped"]
        failed, stopped = services if reasons[0] == "UpgradeFailed" else services[::-1]
        assert uids(stopped) == before[stopped.name]
        assert before[failed.name] & uids(failed), "old pods keep serving"
        stalled = condition(failed.get(), "Stalled")
        assert stalled is not None
        assert stalled["reason"] == "InvalidImageName"
        assert count_failed(kubectl, client) == 1

        release.install(IN_TURN)
        for embsvc in services:
            embsvc.wait_for("is upgraded", lambda resource: upgrading(resource) is None)
            embsvc.wait_serving()
        assert count_failed(kubectl, client) == 0
    assert load.failed == other_load.failed == []
    assert load.asked
    assert uids(stopped) == before[stopped.name], "it was never upgraded"
    for embsvc in services:
        embsvc.delete()


def is_over(resource: Object) -> bool:
    return upgrading(resource) in ("UpgradeFailed", "UpgradeStopped")
