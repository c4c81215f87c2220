"""Two releases in one cluster: refused where both would serve the same services, and apart by their classes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from e2e.cluster.errors import ClusterError
from e2e.cluster.kubectl import Kubectl
from e2e.cluster.lifecycle import Cluster
from e2e.conftest import MakeService
from e2e.demo.partners import HUB_URL
from e2e.demo.release import OPERATOR_NAMESPACE, RELEASE, Release
from e2e.services import TIMEOUT_S, Service, hub_spec, is_serving

CLASS = "embedserve.dev/operator-class"
SECOND = "second"
NO_CRDS = {"crds.enabled": "false"}
OF_CLASS = {**NO_CRDS, "watch.operatorClass": f'"{SECOND}"'}


@pytest.fixture
def second(cluster: Cluster, kubectl: Kubectl) -> Iterator[Release]:
    """A release that is not installed yet, in a namespace of its own."""
    namespace = f"{OPERATOR_NAMESPACE}-{SECOND}"
    yield Release(cluster, HUB_URL, SECOND, namespace)
    kubectl("delete", "namespace", namespace, "--ignore-not-found", timeout_s=TIMEOUT_S)


def label(service: Service, change: str) -> None:
    words = ("embeddingservice", service.name, "--namespace", service.namespace, "--overwrite")
    service.kubectl("label", *words, change)


def uids(service: Service) -> set[str]:
    return {pod["metadata"]["uid"] for pod in service.pods()}


def test_a_release_that_would_serve_the_services_of_another_is_refused(second: Release) -> None:
    with pytest.raises(ClusterError) as refused:
        second.install(NO_CRDS)
    message = str(refused.value)
    assert f"{OPERATOR_NAMESPACE}/{RELEASE}" in message
    assert "watch.operatorClass" in message
    assert second.cluster.kubectl.get("clusterrole", f"{SECOND}-embedserve-operator") is None


def test_releases_of_two_classes_serve_each_its_own_and_hand_a_service_over(
    second: Release, service: MakeService, kubectl: Kubectl
) -> None:
    first_one, second_one, late = service("of-first"), service("of-second"), service("late")
    first_one.apply(hub_spec())
    first_one.wait_serving()
    before = uids(first_one)
    second.install(OF_CLASS)
    try:
        manifest = json.loads(second_one.manifest(hub_spec(suspend=True)))
        manifest["metadata"]["labels"] = {CLASS: SECOND}
        kubectl.apply(json.dumps(manifest))
        second_one.wait_condition("Ready", "True", "Suspended")

        # Each operator goes on after the other one has come: the first still serves what has no class.
        late.apply(hub_spec(suspend=True))
        late.wait_condition("Ready", "True", "Suspended")
        assert uids(first_one) == before

        # The second one takes a service over as it is: its pods are those of before.
        label(first_one, f"{CLASS}={SECOND}")
        first_one.apply(hub_spec(service={"annotations": {"handed": "over"}}))
        first_one.wait_for("is handed over", lambda _: is_annotated(first_one, "handed"))
        assert is_serving(first_one.get())
        assert uids(first_one) == before

        # Without the second release nobody serves it, and it goes on as it is.
        second.uninstall()
        first_one.apply(hub_spec(service={"annotations": {"handed": "over", "un": "seen"}}))
        late.apply(hub_spec(suspend=True, service={"annotations": {"se": "en"}}))
        late.wait_for("the first release works", lambda _: is_annotated(late, "se"))
        assert not is_annotated(first_one, "un")
        assert uids(first_one) == before

        label(first_one, f"{CLASS}-")
        first_one.wait_for("is handed back", lambda _: is_annotated(first_one, "un"))
        first_one.wait_serving()
        assert uids(first_one) == before
    finally:
        for embsvc in (first_one, second_one, late):
            embsvc.delete()


def is_annotated(service: Service, key: str) -> bool:
    return key in service.child_named("service", service.name)["metadata"].get("annotations", {})
