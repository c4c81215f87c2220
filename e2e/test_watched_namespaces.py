"""An operator of some namespaces: one that is deleted takes nothing from the others, and may come back."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from e2e.cluster.kubectl import Kubectl
from e2e.cluster.lifecycle import Cluster
from e2e.cluster.polling import wait_until
from e2e.conftest import MakeService
from e2e.scaled import upgrade
from e2e.services import TIMEOUT_S, Service, hub_spec


@pytest.fixture
def second_namespace(cluster: Cluster, kubectl: Kubectl, namespace: str) -> Iterator[str]:
    """Another namespace; it and the test's own are those that the release watches."""
    name = f"{namespace}-other"
    create(kubectl, name)
    upgrade(cluster, "--set-json", f"watch.namespaces={json.dumps([namespace, name])}")
    yield name
    upgrade(cluster, "--set-json", "watch.namespaces=[]")
    kubectl("delete", "namespace", name, "--wait=false")


def create(kubectl: Kubectl, name: str) -> None:
    kubectl.apply(json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}))


def mark(service: Service, value: str) -> None:
    """Change a service, and wait until the change is made to its child."""
    service.apply(hub_spec(suspend=True, service={"annotations": {"mark": value}}))

    def is_marked(_: object) -> bool:
        child = service.kubectl.get("service", service.name, "--namespace", service.namespace)
        return child is not None and child["metadata"].get("annotations", {}).get("mark") == value

    service.wait_for(f"is marked {value}", is_marked)


def test_a_namespace_that_is_deleted_takes_nothing_from_the_others(
    cluster: Cluster, kubectl: Kubectl, service: MakeService, namespace: str, second_namespace: str
) -> None:
    stays = service("stays")
    elsewhere = Service(kubectl, stays.client, second_namespace, "gone")
    for embsvc in (stays, elsewhere):
        mark(embsvc, "first")
    kubectl("delete", "namespace", second_namespace, timeout_s=TIMEOUT_S)
    wait_until(
        "the namespace is gone",
        lambda: kubectl.get("namespace", second_namespace) is None,
        timeout_s=TIMEOUT_S,
    )
    for number in range(3):
        mark(stays, f"after-{number}")
    # With the namespace its Role has gone; the release brings both back.
    create(kubectl, second_namespace)
    upgrade(cluster, "--set-json", f"watch.namespaces={json.dumps([namespace, second_namespace])}")
    mark(elsewhere, "back")
    mark(stays, "last")
    stays.delete()
