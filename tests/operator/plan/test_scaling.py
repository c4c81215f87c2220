"""An autoscaler takes over the number of pods, and gives it back."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from embedserve_operator.api.status import AutoscalingStatus
from embedserve_operator.apply.drift import AppliedDifferences, find_reason_to_apply
from embedserve_operator.manifests.metadata import read_ref
from embedserve_operator.plan import ReplicasOwnershipTransfer
from embedserve_operator.state.nodes import ClusterState
from tests.operator.builders import OTHER_REPO, REPO, Cluster, hub_spec, resource, with_pods
from tests.operator.moments import NOON

SCALED = hub_spec(autoscaling={"minReplicas": 2, "maxReplicas": 6})


def replicas(cluster: Cluster) -> list[object]:
    return [c["spec"].get("replicas") for c in cluster.plan().children if c["kind"] == "Deployment"]


def test_a_new_service_starts_with_the_fewest_pods_and_never_sends_the_number() -> None:
    cluster = Cluster(resource(SCALED))
    assert replicas(cluster) == [None]
    assert cluster.plan().ownership_transfers == (ReplicasOwnershipTransfer(f"docs-{cluster.revision()}", 2),)


def test_what_runs_is_what_the_autoscaler_starts_from() -> None:
    fixed = Cluster(resource(hub_spec(replicas=4))).applied().rolled_out().published()
    (transfer,) = fixed.changed(SCALED).plan().ownership_transfers
    assert transfer.replicas == 4


def test_the_number_is_handed_over_once() -> None:
    assert with_pods(Cluster(resource(SCALED)).applied(), 5).plan().ownership_transfers == ()


def test_a_number_that_the_autoscaler_wrote_is_left_alone_and_complete_when_it_runs() -> None:
    scaled = with_pods(Cluster(resource(SCALED)).applied(), 5)
    observed, plan = scaled.observed(), scaled.plan()
    assert all(
        find_reason_to_apply(child, observed.find_child(read_ref(child)), AppliedDifferences()) is None
        for child in plan.children
    )
    conditions = scaled.rolled_out().conditions()
    assert set(conditions) == {"Ready"}
    assert conditions["Ready"].message == "5 of 5 replicas are ready"


def test_going_back_to_a_number_sends_it_again_and_removes_the_autoscaler() -> None:
    scaled = with_pods(Cluster(resource(SCALED)).applied(), 5)
    fixed = scaled.changed(hub_spec(replicas=3))
    assert replicas(fixed) == [3]
    assert fixed.plan().ownership_transfers == ()
    assert [child.ref.kind for child in fixed.plan().prune] == ["HorizontalPodAutoscaler"]


def test_a_new_model_comes_up_at_the_size_of_the_old_one_which_keeps_its_autoscaler() -> None:
    old = with_pods(Cluster(resource(SCALED)).applied(), 5).rolled_out().published()
    change = old.changed({**SCALED, "model": hub_spec(OTHER_REPO)["model"]})
    (transfer,) = change.plan().ownership_transfers
    assert transfer.replicas == 5
    after = change.applied()
    assert after.service_revision() == after.revision(hub_spec(REPO))
    assert after.names("HorizontalPodAutoscaler") == [f"docs-{after.service_revision()}"], (
        "one that serves nobody would be shrunk before the switch"
    )


def test_a_new_model_follows_the_old_one_upwards_and_gets_its_autoscaler_with_the_switch() -> None:
    other_model = {**SCALED, "model": hub_spec(OTHER_REPO)["model"]}
    old = with_pods(Cluster(resource(SCALED)).applied(), 3).rolled_out().published()
    change = with_pods(old.changed(other_model).applied(), 3)
    assert change.plan().ownership_transfers == ()
    grown = with_pods(change, 5, only=old.revision())
    assert grown.plan().ownership_transfers == (ReplicasOwnershipTransfer(f"docs-{change.revision()}", 5),)
    shrunk = with_pods(change, 2, only=old.revision())
    assert shrunk.plan().ownership_transfers == ()
    switched = change.rolled_out().applied()
    assert switched.service_revision() == change.revision()
    assert f"docs-{change.revision()}" in switched.names("HorizontalPodAutoscaler")


def test_the_budget_follows_the_autoscaler_wherever_there_may_be_two_pods() -> None:
    alone = Cluster(resource(hub_spec(autoscaling={"minReplicas": 1, "maxReplicas": 1}))).applied()
    assert alone.names("PodDisruptionBudget") == []
    several = Cluster(resource(hub_spec(autoscaling={"minReplicas": 1, "maxReplicas": 4}))).applied()
    (budget,) = [c for c in several.children if c["kind"] == "PodDisruptionBudget"]
    assert budget["spec"]["maxUnavailable"] == 1


def autoscaler(cluster: Cluster) -> Any:
    (manifest,) = [c for c in cluster.plan().children if c["kind"] == "HorizontalPodAutoscaler"]
    return manifest["spec"]


@pytest.mark.parametrize(
    ("fields", "gauge", "value"),
    [
        pytest.param({}, "embedserve_queue_depth", "64", id="by default"),
        pytest.param({"metric": "queueSeconds"}, "embedserve_queue_seconds", "1", id="by waiting time"),
        pytest.param(
            {"metric": "inFlight", "target": 8}, "embedserve_requests_in_flight", "8", id="by requests"
        ),
        pytest.param(
            {"metric": "queueSeconds", "target": "500m"}, "embedserve_queue_seconds", "500m", id="half"
        ),
    ],
)
def test_the_metric_and_its_target_become_those_of_the_autoscaler(
    fields: dict[str, Any], gauge: str, value: str
) -> None:
    (metric,) = autoscaler(Cluster(resource(hub_spec(autoscaling={"maxReplicas": 4, **fields}))))["metrics"]
    assert metric["pods"]["metric"]["name"] == gauge
    assert metric["pods"]["target"] == {"type": "AverageValue", "averageValue": value}


def test_further_metrics_and_behavior_are_passed_on_and_what_they_leave_out_is_the_default() -> None:
    cpu = {"type": "Resource", "resource": {"name": "cpu"}}
    fields = {"maxReplicas": 4, "metrics": [cpu], "behavior": {"scaleUp": {"selectPolicy": "Min"}}}
    spec = autoscaler(Cluster(resource(hub_spec(autoscaling=fields))))
    assert spec["metrics"][1:] == [cpu]
    assert spec["behavior"]["scaleUp"] == {"selectPolicy": "Min"}
    assert spec["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 300


def with_autoscaler_status(cluster: Cluster, **status: Any) -> Cluster:
    """After the autoscaler looked."""
    children = [
        {**c, "status": status} if c["kind"] == "HorizontalPodAutoscaler" else c for c in cluster.children
    ]
    return replace(cluster, children=tuple(children))


def hpa_condition(kind: str, status: str, reason: str, message: str = "") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


ACTIVE = hpa_condition("ScalingActive", "True", "ValidMetricFound")


def test_the_status_tells_what_the_autoscaler_counts_wants_and_measures() -> None:
    current = [{"type": "Pods", "pods": {"current": {"averageValue": "12500m"}}}]
    cluster = with_autoscaler_status(
        Cluster(resource(SCALED)).applied(),
        currentReplicas=2,
        desiredReplicas=3,
        currentMetrics=current,
        conditions=[ACTIVE],
    )
    assert cluster.status().autoscaling == AutoscalingStatus(
        current_replicas=2, desired_replicas=3, metric="queueDepth", value="12500m", target="64"
    )
    assert cluster.conditions()["ScalingActive"].status == "True"
    assert Cluster(resource(SCALED)).applied().status().autoscaling is None, "it has not looked yet"


def test_a_metric_that_cannot_be_had_is_told_with_what_to_do() -> None:
    failed = hpa_condition("ScalingActive", "False", "FailedGetPodsMetric", "no metrics returned")
    cluster = with_autoscaler_status(Cluster(resource(SCALED)).applied(), conditions=[failed])
    condition = cluster.conditions()["ScalingActive"]
    assert (condition.status, condition.reason) == ("False", "MetricsUnavailable")
    assert "no metrics returned" in condition.message
    assert "metricsAdapter" in condition.message
    foreign = replace(cluster, facts=ClusterState(metrics_providers=("Service monitoring/p",)))
    message = foreign.conditions()["ScalingActive"].message
    assert "Service monitoring/p must provide embedserve_queue_depth" in message


def test_being_at_the_maximum_is_said_only_after_a_while() -> None:
    limited = hpa_condition("ScalingLimited", "True", "TooManyReplicas")
    cluster = with_autoscaler_status(
        Cluster(resource(SCALED)).applied(), currentReplicas=6, conditions=[ACTIVE, limited]
    )

    def publish_after(after: timedelta, before: Cluster) -> tuple[set[str], Cluster]:
        status = replace(before, now=int((NOON + after).timestamp())).status()
        stored = {**before.resource, "status": status.as_wire()}
        return {c.type for c in status.conditions}, replace(before, resource=stored)

    types, first = publish_after(timedelta(0), cluster)
    assert "AtMaximum" not in types
    types, second = publish_after(timedelta(seconds=119), first)
    assert "AtMaximum" not in types
    types, third = publish_after(timedelta(seconds=120), second)
    assert "AtMaximum" in types
    types, _ = publish_after(timedelta(seconds=130), with_autoscaler_status(third, conditions=[ACTIVE]))
    assert "AtMaximum" not in types


def test_suspending_stops_all_pods_and_the_autoscaler() -> None:
    cluster = Cluster(resource(SCALED)).applied().changed({**SCALED, "suspend": True})
    assert replicas(cluster) == [0]
    assert cluster.applied().names("HorizontalPodAutoscaler") == []
