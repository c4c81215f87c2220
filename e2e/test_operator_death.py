"""The operator is killed in the middle of its work: what it began is finished."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.cluster.kubectl import Kubectl, deployment_available
from e2e.cluster.polling import wait_until
from e2e.conftest import MakeService
from e2e.demo.release import OPERATOR_NAMESPACE
from e2e.services import OPERATOR, TIMEOUT_S, Object, hub_spec, kill_operator, leader

DEPLOYMENT = ("deployment", OPERATOR, "--namespace", OPERATOR_NAMESPACE)


def restarts(pod: Object) -> int:
    count: int = pod["status"]["containerStatuses"][0]["restartCount"]
    return count


def test_killed_between_two_services_it_finishes_both(kubectl: Kubectl, service: MakeService) -> None:
    first, second = service("first"), service("second")
    before = leader(kubectl)
    first.apply(hub_spec())
    wait_until("the first child exists", lambda: bool(first.children("configmaps")), timeout_s=TIMEOUT_S)
    kill_operator(before)
    second.apply(hub_spec())
    first.wait_serving()
    second.wait_serving()
    assert restarts(leader(kubectl)) > restarts(before), "it was killed, and came back"
    first.delete()
    second.delete()


def test_killed_in_the_middle_of_a_model_change_it_completes_the_change(
    kubectl: Kubectl, service: MakeService
) -> None:
    changing = service("changing")
    changing.apply(hub_spec())
    before = changing.wait_serving()["status"]["vectorSpace"]["id"]
    changing.apply(hub_spec(model={"pooling": "cls"}, rollout={"keepPrevious": "0s"}))
    wait_until(
        "the new Deployment exists", lambda: len(changing.children("deployments")) == 2, timeout_s=TIMEOUT_S
    )
    kill_operator(leader(kubectl))
    assert changing.wait_serving()["status"]["vectorSpace"]["id"] != before
    wait_until(
        "the old Deployment is gone", lambda: len(changing.children("deployments")) == 1, timeout_s=TIMEOUT_S
    )
    changing.delete()


@pytest.fixture
def two_operators(kubectl: Kubectl) -> Iterator[None]:
    kubectl("scale", *DEPLOYMENT, "--replicas=2")
    kubectl.wait_for("two operators", DEPLOYMENT, deployment_available, timeout_s=TIMEOUT_S)
    yield
    kubectl("scale", *DEPLOYMENT, "--replicas=1")
    kubectl.wait_for("one operator", DEPLOYMENT, deployment_available, timeout_s=TIMEOUT_S)


def test_the_second_operator_takes_over_when_the_first_is_gone(
    kubectl: Kubectl, service: MakeService, two_operators: None
) -> None:
    first = leader(kubectl)["metadata"]["name"]
    kubectl("delete", "pod", first, "--namespace", OPERATOR_NAMESPACE, "--grace-period=0", "--force")
    assert leader(kubectl, other_than=first)["metadata"]["name"] != first
    after = service("after")
    after.apply(hub_spec())
    after.wait_serving()
    after.delete()
