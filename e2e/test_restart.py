"""`kubectl rollout restart` of a service's Deployment: every pod once, under load, and nothing is undone later."""

from __future__ import annotations

from e2e.cluster.kubectl import Kubectl
from e2e.cluster.polling import wait_until
from e2e.conftest import MakeService
from e2e.load import asking
from e2e.services import TIMEOUT_S, Object, Service, hub_spec

RESTARTED = "kubectl.kubernetes.io/restartedAt"
REVISION = "deployment.kubernetes.io/revision"


def annotation(deployment: Object) -> str | None:
    value = deployment["spec"]["template"]["metadata"].get("annotations", {}).get(RESTARTED)
    return None if value is None else str(value)


def names(service: Service) -> set[str]:
    return {pod["metadata"]["name"] for pod in service.pods()}


def test_a_restart_by_kubectl_replaces_each_pod_once_and_is_kept(
    kubectl: Kubectl, service: MakeService
) -> None:
    embsvc = service("restarted")
    embsvc.apply(hub_spec(replicas=2))
    embsvc.wait_serving()
    embsvc.embed("the way is open")
    before, deployment = names(embsvc), embsvc.child("deployments")
    where = ("deployment", deployment["metadata"]["name"], "--namespace", embsvc.namespace)
    with asking(embsvc) as load:
        kubectl("rollout", "restart", *where)
        embsvc.wait_serving_by_others(before)
        kubectl("rollout", "status", *where, f"--timeout={TIMEOUT_S}s", timeout_s=TIMEOUT_S + 30)
    assert load.failed == []
    assert load.asked, "requests were made"

    after, restarted = names(embsvc), embsvc.child("deployments")
    assert not before & after
    assert len(after) == 2
    assert annotation(restarted) is not None
    revision = int(deployment["metadata"]["annotations"][REVISION]) + 1
    assert int(restarted["metadata"]["annotations"][REVISION]) == revision, "one rollout"

    # Later passes of the operator, of which this one changes the Deployment itself, leave it alone.
    kubectl("delete", "service", "restarted", "--namespace", embsvc.namespace)
    wait_until("a pass was made", lambda: len(embsvc.children("services")) == 2, timeout_s=TIMEOUT_S)
    kubectl("scale", "embsvc", "restarted", "--replicas=1", "--namespace", embsvc.namespace)
    embsvc.wait_for("one pod is left", lambda _: len(embsvc.pods()) == 1)
    embsvc.wait_serving()
    assert names(embsvc) < after
    later = embsvc.child("deployments")
    assert annotation(later) == annotation(restarted)
    assert int(later["metadata"]["annotations"][REVISION]) == revision, "no second rollout"
    embsvc.delete()
