"""The operator is killed in the middle of its work: what it began is finished."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.cluster.kubectl import Kubectl, deployment_available
from e2e.cluster.polling import wait_until
from e2e.conftest import MakeService
from e2e.demo.release import OPERATOR_NAMESPACE, RELEASE
from e2e.services import PATIENCE_S, hub_spec, kill_operator, operator_pods

OPERATOR = ("deployment", f"{RELEASE}-operator", "--namespace", OPERATOR_NAMESPACE)
LEASE = ("lease", f"{RELEASE}-operator", "--namespace", OPERATOR_NAMESPACE)


def holder(kubectl: Kubectl) -> str:
    lease = kubectl.get(*LEASE)
    return str(lease["spec"]["holderIdentity"]) if lease is not None else ""


def test_killed_between_two_services_it_finishes_both(kubectl: Kubectl, service: MakeService) -> None:
    first, second = service("first"), service("second")
    (before,) = operator_pods(kubectl)
    first.apply(hub_spec())
    wait_until("the first child exists", lambda: bool(first.children("configmaps")), timeout_s=PATIENCE_S)
    kill_operator(before)
    second.apply(hub_spec())
    first.wait_serving()
    second.wait_serving()
    (after,) = operator_pods(kubectl)
    assert (
        after["status"]["containerStatuses"][0]["restartCount"]
        > (before["status"]["containerStatuses"][0]["restartCount"])
    ), "it was killed, and came back"
    first.delete()
    second.delete()


def test_killed_in_the_middle_of_a_model_change_it_completes_the_change(
    kubectl: Kubectl, service: MakeService
) -> None:
    changing = service("changing")
    changing.apply(hub_spec())
    before = changing.wait_serving()["status"]["vectorSpace"]["id"]
    changing.apply(hub_spec(model={"pooling": "cls"}))
    wait_until(
        "the new Deployment exists", lambda: len(changing.children("deployments")) == 2, timeout_s=PATIENCE_S
    )
    (pod,) = operator_pods(kubectl)
    kill_operator(pod)
    assert changing.wait_serving()["status"]["vectorSpace"]["id"] != before
    wait_until(
        "the old Deployment is gone", lambda: len(changing.children("deployments")) == 1, timeout_s=PATIENCE_S
    )
    changing.delete()


@pytest.fixture
def two_operators(kubectl: Kubectl) -> Iterator[None]:
    kubectl("scale", *OPERATOR, "--replicas=2")
    kubectl.wait_for("two operators", OPERATOR, deployment_available, timeout_s=PATIENCE_S)
    yield
    kubectl("scale", *OPERATOR, "--replicas=1")
    kubectl.wait_for("one operator", OPERATOR, deployment_available, timeout_s=PATIENCE_S)


def test_the_second_operator_takes_over_when_the_first_is_gone(
    kubectl: Kubectl, service: MakeService, two_operators: None
) -> None:
    leader = holder(kubectl)
    assert leader in {pod["metadata"]["name"] for pod in operator_pods(kubectl)}
    kubectl("delete", "pod", leader, "--namespace", OPERATOR_NAMESPACE, "--grace-period=0", "--force")

    def has_moved() -> bool:
        return holder(kubectl) not in ("", leader)

    wait_until("another operator leads", has_moved, timeout_s=PATIENCE_S)
    after = service("after")
    after.apply(hub_spec())
    after.wait_serving()
    after.delete()
