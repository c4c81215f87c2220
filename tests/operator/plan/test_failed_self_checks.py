"""The condition that warns of a serving pod whose vectors could not be checked."""

from __future__ import annotations

from dataclasses import replace

from embedserve_operator.state.pods import PodReplies, SelfCheckResult
from tests.operator.builders import OTHER_REPO, Cluster, hub_spec, resource

RESET = "its management port cannot be reached: Connection reset by peer"


def serving() -> Cluster:
    return Cluster(resource(hub_spec())).applied().rolled_out().applied().published()


def fail_checks(cluster: Cluster) -> Cluster:
    """Return the cluster whose pods could not be checked."""
    failed = {pod.run_id: PodReplies(SelfCheckResult(None, None, RESET)) for pod in cluster.observed().pods}
    return replace(cluster, replies=failed)


def test_a_serving_pod_that_cannot_be_checked_is_told_beside_ready() -> None:
    cluster = fail_checks(serving())
    conditions = cluster.conditions()
    assert conditions["Ready"].status == "True"
    warning = conditions["SelfCheckFailed"]
    assert (warning.status, warning.reason) == ("True", "SelfCheckFailed")
    assert RESET in warning.message
    assert set(conditions) == {"Ready", "SelfCheckFailed"}


def test_the_warning_goes_with_the_first_check_that_passes_and_with_the_pod() -> None:
    cluster = fail_checks(serving())
    assert "SelfCheckFailed" not in replace(cluster, replies={}).conditions()
    assert "SelfCheckFailed" not in replace(cluster, pods=()).conditions()


def test_while_another_model_is_to_take_over_its_own_checks_are_what_is_told() -> None:
    changing = fail_checks(serving()).changed(hub_spec(OTHER_REPO)).applied()
    assert "SelfCheckFailed" not in changing.conditions()
