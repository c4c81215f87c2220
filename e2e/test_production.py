"""What a service goes through in production: drains, upgrades of the operator, other managers, autoscalers."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from e2e.cluster.kubectl import Kubectl, deployment_available
from e2e.cluster.lifecycle import Cluster
from e2e.cluster.polling import wait_until
from e2e.cluster.shell import run
from e2e.conftest import MakeService
from e2e.demo.release import CHART, OPERATOR_NAMESPACE, RELEASE
from e2e.load import asking
from e2e.services import OPERATOR, TIMEOUT_S, Service, condition, hub_spec, is_serving

OPERATOR_DEPLOYMENT = ("deployment", OPERATOR, "--namespace", OPERATOR_NAMESPACE)


def evict(service: Service, pod: str) -> bool:
    """Ask for an eviction, as a drain does; false when a budget says not now."""
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": service.namespace},
    }
    path = f"/api/v1/namespaces/{service.namespace}/pods/{pod}/eviction"
    result = subprocess.run(
        service.kubectl.command(["create", "--raw", path, "--filename", "-"]),
        input=json.dumps(eviction),
        env=service.kubectl.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert result.returncode == 0 or "disruption budget" in result.stderr, result.stderr
    return result.returncode == 0


def test_evicting_one_pod_after_the_other_fails_no_request(service: MakeService) -> None:
    drained = service("drained")
    drained.apply(hub_spec(replicas=2))
    drained.wait_serving()
    before = [pod["metadata"]["name"] for pod in drained.pods()]
    assert len(drained.children("poddisruptionbudgets")) == 1
    drained.embed("the way is open")
    with asking(drained) as load:
        assert evict(drained, before[0])
        assert not evict(drained, before[1]), "the budget holds the second one back"
        wait_until("the second may go", lambda: evict(drained, before[1]), timeout_s=TIMEOUT_S)
        wait_until(
            "both have been replaced",
            lambda: not set(before) & {pod["metadata"]["name"] for pod in drained.pods()},
            timeout_s=TIMEOUT_S,
        )
        drained.wait_serving()
    assert load.failed == []
    assert load.asked, "requests were made"
    drained.delete()


@pytest.fixture
def steady(service: MakeService) -> Service:
    """A service that runs and is not changed."""
    embsvc = service("steady")
    embsvc.apply(hub_spec())
    embsvc.wait_serving()
    return embsvc


def test_an_upgrade_of_the_operator_restarts_no_pod(
    cluster: Cluster, kubectl: Kubectl, steady: Service, service: MakeService
) -> None:
    before = [(pod["metadata"]["uid"], pod["metadata"]["name"]) for pod in steady.pods()]
    deployment = kubectl.get(*OPERATOR_DEPLOYMENT)
    assert deployment is not None
    image = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
    cluster.containerd.tag(f"docker.io/library/{image}", "docker.io/library/embedserve-operator:next")
    kubectl("set", "image", *OPERATOR_DEPLOYMENT, "operator=embedserve-operator:next")
    kubectl.wait_for("the new operator", OPERATOR_DEPLOYMENT, deployment_available, timeout_s=TIMEOUT_S)
    # That this one is served shows that the new operator has gone over all resources.
    newcomer = service("other")
    newcomer.apply(hub_spec(suspend=True))
    newcomer.wait_condition("Ready", "True", "Suspended")
    assert is_serving(steady.get())
    assert [(pod["metadata"]["uid"], pod["metadata"]["name"]) for pod in steady.pods()] == before
    kubectl("set", "image", *OPERATOR_DEPLOYMENT, f"operator={image}")
    kubectl.wait_for("the operator", OPERATOR_DEPLOYMENT, deployment_available, timeout_s=TIMEOUT_S)
    newcomer.delete()


def test_a_manager_that_insists_is_reported_and_not_fought(kubectl: Kubectl, steady: Service) -> None:
    name = steady.child("deployments")["metadata"]["name"]

    def apply_as_other(spec: dict[str, object]) -> None:
        manifest = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name, "namespace": steady.namespace},
            **({"spec": spec} if spec else {}),
        }
        words = (
            "apply",
            "--server-side",
            "--force-conflicts",
            "--field-manager=other-tool",
            "--filename",
            "-",
        )
        kubectl(*words, stdin=json.dumps(manifest))

    apply_as_other({"minReadySeconds": 7, "revisionHistoryLimit": 3})
    reported = steady.wait_condition("Reconciling", "True", "FieldConflict")
    assert "other-tool" in reported["message"]
    assert "revisionHistoryLimit" in reported["message"]
    spec = steady.child("deployments")["spec"]
    assert (spec["revisionHistoryLimit"], spec["minReadySeconds"]) == (3, 7)
    apply_as_other({"minReadySeconds": 7})
    resource = steady.wait_serving()
    assert condition(resource, "Reconciling") is None
    spec = steady.child("deployments")["spec"]
    assert (spec["revisionHistoryLimit"], spec["minReadySeconds"]) == (0, 7), "an addition stays"


def test_an_autoscaler_keeps_the_number_that_it_writes(kubectl: Kubectl, service: MakeService) -> None:
    scaled = service("scaled")
    scaled.apply(hub_spec())
    scaled.wait_serving()
    scaled.apply(hub_spec(autoscaling={"minReplicas": 1, "maxReplicas": 3}))
    wait_until(
        "the autoscaler is made",
        lambda: bool(scaled.children("horizontalpodautoscalers")),
        timeout_s=TIMEOUT_S,
    )
    scaled.wait_serving()
    deployment = scaled.child("deployments")
    assert deployment["spec"]["replicas"] == 1
    # As the autoscaler writes it: through the scale subresource.
    words = ("deployment", deployment["metadata"]["name"], "--namespace", scaled.namespace)
    kubectl("scale", *words, "--replicas=2")
    scaled.wait_for("two pods", lambda resource: resource["status"].get("readyReplicas") == 2)
    kubectl("delete", "service", "scaled", "--namespace", scaled.namespace)
    wait_until("a pass was made", lambda: bool(scaled.children("services")), timeout_s=TIMEOUT_S)
    assert scaled.child("deployments")["spec"]["replicas"] == 2
    scaled.apply(hub_spec(replicas=1))
    wait_until(
        "the autoscaler is gone",
        lambda: not scaled.children("horizontalpodautoscalers"),
        timeout_s=TIMEOUT_S,
    )
    assert scaled.wait_serving()["status"]["readyReplicas"] == 1
    scaled.delete()


def test_events_tell_each_thing_once(kubectl: Kubectl, steady: Service) -> None:
    kubectl("delete", "service", "steady", "--namespace", steady.namespace)
    wait_until("a pass was made", lambda: bool(steady.children("services")), timeout_s=TIMEOUT_S)
    words = ("--namespace", steady.namespace, "--field-selector", "involvedObject.kind=EmbeddingService")
    events = json.loads(kubectl("get", "events", *words, "--output", "json"))["items"]
    reasons = [(e["involvedObject"]["name"], e["reason"]) for e in events]
    assert reasons.count(("steady", "Serving")) >= 1
    messages = [(e["involvedObject"]["name"], e["reason"], e["message"], e["firstTimestamp"]) for e in events]
    assert len(messages) == len(set(messages))


def test_an_operator_of_one_namespace_serves_that_and_no_other(
    cluster: Cluster, kubectl: Kubectl, service: MakeService, namespace: str
) -> None:
    release = (RELEASE, "--namespace", OPERATOR_NAMESPACE)
    environment = {**os.environ, "KUBECONFIG": str(cluster.layout.admin_kubeconfig)}
    upgrade = [str(cluster.helm), "upgrade", release[0], str(CHART), *release[1:], "--reuse-values", "--wait"]
    run(
        [*upgrade, "--set-json", f'watch.namespaces=["{namespace}"]', "--set", "watch.nodes=false"],
        environment=environment,
        timeout_s=240,
    )
    account = f"system:serviceaccount:{OPERATOR_NAMESPACE}:{OPERATOR}"
    try:
        for where, want in ((namespace, "yes"), ("default", "no")):
            for what in ("deployments", "configmaps"):
                words = ("auth", "can-i", "create", what, "--as", account, "--namespace", where)
                assert kubectl.attempt(*words).stdout.strip() == want
        outside = Service(kubectl, service("inside").client, "default", "outside")
        outside.apply(hub_spec(suspend=True))
        inside = service("inside")
        inside.apply(hub_spec())
        resource = inside.wait_serving()
        assert "matchingNodes" not in resource["status"]["hardware"]
        assert outside.get()["status"]["observedGeneration"] == -1
        outside.delete()
        inside.delete()
    finally:
        run(
            [*upgrade, "--set-json", "watch.namespaces=[]", "--set", "watch.nodes=true"],
            environment=environment,
            timeout_s=240,
        )
