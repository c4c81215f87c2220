"""The life of one service: applied, scaled, tampered with, deleted."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from e2e.cluster.kubectl import Kubectl
from e2e.cluster.polling import wait_until
from e2e.conftest import MakeService
from e2e.hub import samples
from e2e.services import TIMEOUT_S, Object, Service, hub_spec

SPEC = hub_spec(servedModelName="life")


@pytest.fixture
def life(service: MakeService) -> Service:
    """The service of this module, as it was first applied."""
    embsvc = service("life")
    embsvc.apply(SPEC)
    embsvc.wait_serving()
    return embsvc


def test_an_applied_resource_serves_vectors_under_its_name(life: Service) -> None:
    first, second, same = life.embed(
        "A cat sits on the mat.", "Quarterly revenue rose.", "A cat sits on the mat."
    )
    assert len(first) == 384
    assert math.isclose(sum(x * x for x in first), 1.0, abs_tol=1e-4)
    assert first == pytest.approx(same, abs=1e-5)
    assert first != pytest.approx(second, abs=1e-2)


def test_the_status_tells_what_is_served(life: Service) -> None:
    status = life.get()["status"]
    assert status["endpoint"] == {"url": f"http://life.{life.namespace}.svc"}
    assert status["vectorSpace"]["id"].startswith("vs2-")
    assert status["vectorSpace"]["dimensions"] == 384
    assert status["model"]["source"] == samples.MINILM
    assert status["model"]["digest"].startswith("sha256:")
    assert status["model"]["sizeBytes"] > 80_000_000
    assert (status["replicas"], status["readyReplicas"]) == (1, 1)


def test_get_shows_what_a_newcomer_wants_to_know(life: Service, kubectl: Kubectl) -> None:
    heads, row = kubectl("get", "embsvc", "life", "--namespace", life.namespace).splitlines()
    assert heads.split() == ["NAME", "READY", "MODEL", "CLASS", "REPLICAS", "SPACE", "URL", "AGE"]
    space = life.get()["status"]["vectorSpace"]["id"]
    want = ["life", "True", samples.MINILM, "cpu", "1", space, f"http://life.{life.namespace}.svc"]
    assert row.split()[:7] == want
    assert "life" in kubectl("get", "all", "--namespace", life.namespace, "--output", "name")


def test_the_users_resource_is_what_the_user_applied(life: Service) -> None:
    """Byte for byte, but for what the API server itself adds and the status."""
    resource = life.get()
    applied = json.loads(
        resource["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"]
    )
    assert applied["spec"] == SPEC
    assert _without_defaults(resource["spec"], SPEC) == SPEC
    assert set(resource["metadata"]) == {
        "annotations",
        "creationTimestamp",
        "generation",
        "name",
        "namespace",
        "resourceVersion",
        "uid",
    }, "no finalizer, no label, nothing else"
    assert set(resource["metadata"]["annotations"]) == {"kubectl.kubernetes.io/last-applied-configuration"}
    owners = _field_owners(life)
    assert owners["embedserve-operator"] == {"status"}


@pytest.mark.parametrize("by", [(), ("--server-side", "--field-manager=gitops")], ids=["client", "server"])
def test_applying_it_again_makes_no_difference(life: Service, kubectl: Kubectl, by: tuple[str, ...]) -> None:
    generation = life.get()["metadata"]["generation"]
    # Fails with the difference, if there is one.
    assert kubectl("diff", *by, "--filename", "-", stdin=life.manifest(SPEC)) == ""
    kubectl("apply", *by, "--filename", "-", stdin=life.manifest(SPEC))
    assert life.get()["metadata"]["generation"] == generation


def _without_defaults(live: Any, applied: Any) -> Any:
    """Return a spec without what the API server filled in from the schema."""
    if isinstance(live, dict) and isinstance(applied, dict):
        return {key: _without_defaults(live[key], applied[key]) for key in live if key in applied}
    return live


def _field_owners(service: Service) -> dict[str, set[str]]:
    """Return which manager wrote what of the user's resource: the whole, or a subresource."""
    words = ("embeddingservice", service.name, "--namespace", service.namespace, "--show-managed-fields")
    received = service.kubectl.get(*words)
    assert received is not None
    owners: dict[str, set[str]] = {}
    for entry in received["metadata"]["managedFields"]:
        owners.setdefault(entry["manager"], set()).add(entry.get("subresource", ""))
    return owners


def test_scaling_adds_a_pod_and_restarts_none(life: Service, kubectl: Kubectl) -> None:
    (before,) = life.pods()
    kubectl("scale", "embsvc", "life", "--replicas=2", "--namespace", life.namespace)
    status = life.wait_serving()["status"]
    assert (status["replicas"], status["readyReplicas"]) == (2, 2)
    assert before["metadata"]["uid"] in {pod["metadata"]["uid"] for pod in life.pods()}
    kubectl("scale", "embsvc", "life", "--replicas=1", "--namespace", life.namespace)
    assert life.wait_serving()["status"]["readyReplicas"] == 1


@pytest.mark.parametrize("kind", ["services", "configmaps", "deployments", "networkpolicies"])
def test_a_deleted_child_comes_back(life: Service, kubectl: Kubectl, kind: str) -> None:
    before = {child["metadata"]["name"]: child["metadata"]["uid"] for child in life.children(kind)}
    for name in before:
        kubectl("delete", kind, name, "--namespace", life.namespace)

    def are_back() -> bool:
        uids = {child["metadata"]["name"]: child["metadata"]["uid"] for child in life.children(kind)}
        return uids.keys() == before.keys() and not set(uids.values()) & set(before.values())

    wait_until(f"{kind} {', '.join(before)} are back", are_back, timeout_s=TIMEOUT_S)
    life.wait_serving()


def test_a_child_that_somebody_changed_is_put_right_and_additions_stay(
    life: Service, kubectl: Kubectl
) -> None:
    name = life.child("deployments")["metadata"]["name"]
    where = ("--namespace", life.namespace)
    kubectl("label", "deployment", name, "mesh=on", *where)
    kubectl("scale", "deployment", name, "--replicas=0", *where)

    def is_right() -> bool:
        return bool(life.child("deployments")["spec"]["replicas"] == 1)

    wait_until("the Deployment has its replicas back", is_right, timeout_s=TIMEOUT_S)
    assert life.child("deployments")["metadata"]["labels"]["mesh"] == "on"
    life.wait_serving()


def test_a_child_whose_labels_were_taken_off_gets_them_back_and_nothing_else_changes(
    life: Service, kubectl: Kubectl
) -> None:
    before = life.child("deployments")
    name = before["metadata"]["name"]
    kubectl("label", "deployment", name, "embedserve.dev/service-", "--namespace", life.namespace)
    wait_until("it has its labels", lambda: len(life.children("deployments")) == 1, timeout_s=TIMEOUT_S)
    life.wait_serving()
    after = life.child("deployments")
    assert (after["metadata"]["uid"], after["spec"]) == (before["metadata"]["uid"], before["spec"])


def test_a_service_that_is_created_again_adopts_what_its_deletion_orphaned(
    life: Service, kubectl: Kubectl
) -> None:
    pods = {pod["metadata"]["uid"] for pod in life.pods()}
    words = ("embeddingservice", life.name, "--namespace", life.namespace)
    kubectl("delete", *words, "--cascade=orphan")
    assert not any(child["metadata"].get("ownerReferences") for child in life.children("deployments"))
    life.apply(SPEC)
    life.wait_serving()
    owner = life.get()["metadata"]["uid"]

    def find_owners() -> set[str]:
        return {
            child["metadata"].get("ownerReferences", [{"uid": ""}])[0]["uid"] for child in life.children()
        }

    wait_until("all children belong to it", lambda: find_owners() == {owner}, timeout_s=TIMEOUT_S)
    assert {pod["metadata"]["uid"] for pod in life.pods()} == pods


def test_a_pass_asks_for_nothing_that_is_right_already(life: Service, kubectl: Kubectl) -> None:
    applies = _applies(kubectl)
    for _ in range(2):
        # The Service's return shows that passes were made.
        kubectl("delete", "service", "life", "--namespace", life.namespace)
        wait_until("the Service is back", lambda: len(life.children("services")) == 2, timeout_s=TIMEOUT_S)
    after = _applies(kubectl)
    assert (after["deployments"], after["configmaps"]) == (applies["deployments"], applies["configmaps"])
    assert after["services"] == applies["services"] + 2


def _applies(kubectl: Kubectl) -> dict[str, int]:
    """Server-side apply requests that the API server has answered, by resource."""
    counts = dict.fromkeys(("configmaps", "deployments", "services"), 0)
    for line in kubectl("get", "--raw", "/metrics").splitlines():
        if line.startswith("apiserver_request_total{") and 'verb="APPLY"' in line:
            for resource in counts:
                if f'resource="{resource}"' in line:
                    counts[resource] += int(float(line.rpartition(" ")[2]))
    return counts


def test_a_suspended_service_keeps_its_name_and_nothing_else(life: Service) -> None:
    life.apply({**SPEC, "suspend": True})
    life.wait_condition("Ready", "True", "Suspended")
    wait_until("no pod runs", lambda: not life.pods(), timeout_s=TIMEOUT_S)
    assert len(life.children("services", "deployments")) == 3, "the vector space has a Service too"
    life.apply(SPEC)
    life.wait_serving()


def test_deletion_leaves_nothing_behind(life: Service, kubectl: Kubectl) -> None:
    before: list[Object] = life.children()
    assert {child["kind"] for child in before} == {"Deployment", "Service", "ConfigMap", "NetworkPolicy"}
    life.delete()
    wait_until("all children are gone", lambda: not life.children(), timeout_s=TIMEOUT_S)
    wait_until("all pods are gone", lambda: not life.children("pods"), timeout_s=TIMEOUT_S)
    assert kubectl.get("embeddingservice", "life", "--namespace", life.namespace) is None
