"""What the cluster refuses of a service keeps back what needs it, is said, and ends when its cause does."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from e2e.cluster.errors import ClusterError
from e2e.cluster.kubectl import Kubectl
from e2e.cluster.polling import wait_until
from e2e.conftest import MakeService
from e2e.demo.release import OPERATOR_NAMESPACE
from e2e.services import OPERATOR, TIMEOUT_S, Object, Service, condition, hub_spec

CACHE = {"volume": {"size": "1Gi"}}
ACCOUNT = f"system:serviceaccount:{OPERATOR_NAMESPACE}:{OPERATOR}"


def test_a_service_without_replicas_answers_at_its_scale(
    kubectl: Kubectl, namespace: str, service: MakeService
) -> None:
    scaled = service("scaled")
    scaled.apply(hub_spec())
    path = f"/apis/embedserve.dev/v1alpha1/namespaces/{namespace}/embeddingservices/scaled/scale"
    assert json.loads(kubectl("get", "--raw", path))["spec"] == {"replicas": 1}
    kubectl("scale", "embeddingservice", "scaled", "--namespace", namespace, "--replicas=2")
    scaled.wait_for("has two pods", lambda resource: resource["status"].get("readyReplicas") == 2)


def test_what_only_its_author_can_heal_is_stalled_and_all_else_is_made(service: MakeService) -> None:
    wrong = service("wrong")
    terms: list[Object] = [{"labelSelector": {}}]
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    wrong.apply(hub_spec(replicas=2, pod={"affinity": affinity}))
    reported = wrong.wait_condition("Stalled", "True", "ChildRefused")
    assert "topologyKey: Required value" in reported["message"]
    assert len(wrong.children("networkpolicies", "poddisruptionbudgets")) == 2
    wrong.apply(hub_spec(replicas=2))
    wrong.wait_serving()


def test_a_claim_that_cannot_grow_keeps_no_other_change_from_being_made(service: MakeService) -> None:
    cached = service("grows")
    cached.apply(hub_spec(cache=CACHE))
    cached.wait_serving()
    cached.apply(hub_spec(cache={"volume": {"size": "2Gi"}}, service={"annotations": {"beside": "it"}}))
    assert "must support resize" in cached.wait_condition("Stalled", "True", "ChildRefused")["message"]
    assert "beside" in cached.child_named("service", "grows")["metadata"]["annotations"]
    cached.apply(hub_spec(cache=CACHE))
    cached.wait_serving()


def test_a_claim_that_was_deleted_is_made_anew_as_soon_as_the_last_pod_is_gone(
    kubectl: Kubectl, namespace: str, service: MakeService
) -> None:
    cached = service("renewed")
    cached.apply(hub_spec(cache=CACHE))
    cached.wait_serving()
    (claim,) = cached.children("persistentvolumeclaims")
    name = claim["metadata"]["name"]
    kubectl("delete", "persistentvolumeclaim", name, "--namespace", namespace, "--wait=false")
    reported = cached.wait_condition("Reconciling", "True", "VolumeClaimTerminating")
    assert f"{name} is being deleted" in reported["message"]
    assert len(cached.embed("what runs goes on")) == 1
    kubectl("delete", "pods", "--namespace", namespace, "--selector", cached.selector, "--wait=false")
    cached.wait_serving()
    (renewed,) = cached.children("persistentvolumeclaims")
    assert renewed["metadata"]["uid"] != claim["metadata"]["uid"]
    assert len(cached.embed("filled again")) == 1


@pytest.fixture
def no_room(kubectl: Kubectl, namespace: str) -> Iterator[None]:
    """While a quota has no room for a further pod."""
    metadata = {"name": "none", "namespace": namespace}
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": metadata,
        "spec": {"hard": {"pods": "0"}},
    }
    kubectl.apply(json.dumps(quota))
    kubectl.wait_for(
        "the quota counts",
        ("resourcequota", "none", "--namespace", namespace),
        lambda resource: "pods" in resource.get("status", {}).get("used", {}),
        timeout_s=TIMEOUT_S,
    )
    yield
    kubectl("delete", "resourcequota", "none", "--namespace", namespace, "--ignore-not-found")


def test_a_quota_without_room_for_a_job_is_said(
    kubectl: Kubectl, namespace: str, service: MakeService, no_room: None
) -> None:
    cached = service("quota")
    cached.apply(hub_spec(cache=CACHE))
    reported = cached.wait_condition("Reconciling", "True", "QuotaExceeded")
    assert "Job quota-fetch-" in reported["message"]
    assert "exceeded quota: none" in reported["message"]
    kubectl("delete", "resourcequota", "none", "--namespace", namespace)
    cached.wait_for("the Job has a pod", lambda resource: _reason(resource, "Reconciling") != "QuotaExceeded")


def _reason(resource: Object, kind: str) -> str | None:
    there = condition(resource, kind)
    return None if there is None else str(there["reason"])


def test_nothing_is_written_at_passes_that_change_nothing(kubectl: Kubectl, service: MakeService) -> None:
    """With values that the API server spells in another way, and defaults inside of lists without keys."""
    quiet = service("quiet")
    rule = {"ports": [{"port": 3128}], "to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}
    quiet.apply(
        hub_spec(
            networkPolicy={"egress": [rule]},
            resources={"limits": {"memory": "2048Mi"}},
            autoscaling={"maxReplicas": 2, "target": "1000m"},
        )
    )
    quiet.wait_for("has its pods", lambda resource: resource["status"].get("readyReplicas") == 1)
    before = {_key(child): _version(child) for child in _quiet_children(quiet)}
    for number in range(5):
        words = ("embeddingservice", "quiet", "--namespace", quiet.namespace, f"pass={number}", "--overwrite")
        kubectl("annotate", *words)
    quiet.apply({**quiet.get()["spec"], "service": {"annotations": {"last": "pass"}}})
    wait_until(
        "the last pass is over",
        lambda: "last" in quiet.child_named("service", "quiet")["metadata"].get("annotations", {}),
        timeout_s=TIMEOUT_S,
    )
    assert {_key(child): _version(child) for child in _quiet_children(quiet)} == before


def _quiet_children(service: Service) -> list[Object]:
    """Children that nobody else writes a status into."""
    return service.children("networkpolicies", "configmaps")


def _key(child: Object) -> tuple[str, str]:
    return child["kind"], child["metadata"]["name"]


def _version(child: Object) -> str:
    return str(child["metadata"]["resourceVersion"])


@pytest.mark.parametrize(
    ("change", "is_allowed"),
    [
        pytest.param({"labels": {"embedserve.dev/vector-space": "vs1-a"}}, True, id="its vector space"),
        pytest.param({"labels": {"team": "x"}}, False, id="another label"),
        pytest.param({"annotations": {"a": "b"}}, False, id="an annotation"),
        pytest.param({"finalizers": ["example.com/x"]}, False, id="a finalizer"),
    ],
)
def test_the_operator_may_change_one_label_of_pods(
    kubectl: Kubectl, service: MakeService, change: Object, is_allowed: bool
) -> None:
    scaled = service("held")
    scaled.apply(hub_spec(replicas=1))
    scaled.wait_serving()
    (pod,) = scaled.pods()
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": pod["metadata"]["name"], "namespace": scaled.namespace, **change},
    }
    words = (
        "apply",
        "--server-side",
        "--force-conflicts",
        "--dry-run=server",
        "--as",
        ACCOUNT,
        "--filename",
        "-",
    )
    if is_allowed:
        kubectl(*words, stdin=json.dumps(manifest))
        return
    with pytest.raises(ClusterError, match="the operator changes"):
        kubectl(*words, stdin=json.dumps(manifest))
