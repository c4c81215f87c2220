"""The status as it is published: times that move only with their condition, and refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from embedserve_operator.apply.results import ApplyFailure
from embedserve_operator.settings import KedaSettings
from embedserve_operator.status.publisher import differs_only_in_progress
from tests.operator.builders import OTHER_REPO, SETTINGS, Cluster, failed, hub_spec, resource
from tests.operator.moments import LATER, NOON


def test_a_condition_keeps_its_time_while_its_status_stays() -> None:
    waiting = Cluster().applied().published()
    broken = waiting.started(failed("ModelNotFound", "gone", retryable=False))
    status = replace(broken, now=int(LATER.timestamp())).status()
    by_type = {condition.type: condition for condition in status.conditions}
    assert by_type["Ready"].last_transition_time == NOON.strftime("%Y-%m-%dT%H:%M:%SZ")
    assert by_type["Stalled"].last_transition_time == LATER.strftime("%Y-%m-%dT%H:%M:%SZ")


def test_nothing_new_is_nothing_to_write() -> None:
    cluster = Cluster().applied().rolled_out().published()
    later = replace(cluster, now=int(LATER.timestamp()))
    assert later.status() == cluster.observed().resource.status


def test_the_generation_that_was_acted_upon_is_told() -> None:
    cluster = Cluster().changed(hub_spec(replicas=2)).published()
    assert cluster.observed().resource.status.observed_generation == 2


def test_a_refused_child_is_told_and_takes_nothing_from_what_serves() -> None:
    serving = Cluster().applied().rolled_out().published()
    refusal = ApplyFailure("ChildRefused", "the API server refused Deployment docs-x: exceeded quota")
    status = serving.changed(hub_spec(OTHER_REPO)).status(refusal)
    by_type = {condition.type: condition for condition in status.conditions}
    assert by_type["Ready"].status == "True"
    assert (by_type["Reconciling"].reason, by_type["Reconciling"].message) == (
        refusal.reason,
        refusal.message,
    )


@pytest.mark.parametrize(("is_transient", "kind"), [(True, "Reconciling"), (False, "Stalled")])
def test_a_child_that_only_its_author_can_heal_stalls_the_service(is_transient: bool, kind: str) -> None:
    refusal = ApplyFailure("ChildRefused", "maxSkew must be above zero", is_transient=is_transient)
    assert {c.type for c in Cluster().status(refusal).conditions} == {"Ready", kind}


def test_a_refused_child_stands_beside_a_refused_model_change() -> None:
    refusing: dict[str, Any] = {"rollout": {"onNewVectorSpace": "Refuse"}}
    serving = Cluster(resource(hub_spec(**refusing))).applied().rolled_out().published()
    changed = serving.changed(hub_spec(OTHER_REPO, replicas=0, **refusing))
    status = changed.status(ApplyFailure("ChildRefused", "exceeded quota"))
    by_type = {condition.type: condition for condition in status.conditions}
    assert set(by_type) == {"Ready", "Stalled"}
    assert by_type["Stalled"].reason == "VectorSpaceChange"
    assert "ChildRefused: exceeded quota" in by_type["Stalled"].message


def test_a_refused_child_takes_nothing_from_what_the_autoscaler_says() -> None:
    scaled = Cluster(resource(hub_spec(autoscaling={"minReplicas": 1, "maxReplicas": 3})))
    without_keda = replace(scaled, settings=replace(SETTINGS, keda=KedaSettings()))
    status = without_keda.status(ApplyFailure("ChildRefused", "no"))
    assert {c.type: c.reason for c in status.conditions}["ScalingActive"] == "KedaMissing"


def test_a_refused_child_of_a_new_service_is_why_it_is_not_ready() -> None:
    status = Cluster().status(ApplyFailure("NameTaken", "Service docs exists already"))
    assert [c.reason for c in status.conditions] == ["NameTaken", "NameTaken"]


def test_a_service_whose_name_leads_elsewhere_is_not_ready_although_its_pods_are() -> None:
    serving = Cluster().applied().rolled_out().applied().published()
    taken = ApplyFailure("NameTaken", "Service docs exists already")
    assert serving.conditions()["Ready"].status == "True"
    foreign = replace(
        serving,
        children=tuple(
            child
            for child in serving.children
            if (child["kind"], child["metadata"]["name"]) != ("Service", "docs")
        ),
    )
    ready = {condition.type: condition for condition in foreign.status(taken).conditions}["Ready"]
    assert (ready.status, ready.reason) == ("False", "NameTaken")
    still = {condition.type: condition for condition in serving.status(taken).conditions}["Ready"]
    assert still.status == "True", "what could not be written is another child"


def test_a_suspended_service_whose_pods_could_not_be_stopped_is_not_ready() -> None:
    suspended = Cluster().applied().rolled_out().applied().published().changed(hub_spec(suspend=True))
    conflict = ApplyFailure("FieldConflict", "somebody sets spec.replicas")
    ready = {condition.type: condition for condition in suspended.status(conflict).conditions}["Ready"]
    assert (ready.status, ready.reason) == ("False", "FieldConflict")
    assert suspended.conditions()["Ready"].reason == "Suspended"


def test_a_status_that_somebody_spoilt_is_replaced() -> None:
    cluster = Cluster()
    spoilt = {**cluster.resource, "status": {"conditions": "nonsense"}}
    assert Cluster(spoilt).observed().resource.status.observed_generation == -1


def test_counts_and_words_are_progress_and_whatever_else_is_new_is_not() -> None:
    before = Cluster().applied().status()
    waiting = before.conditions[0]
    words = waiting.model_copy(update={"message": "1 of 1 replicas are ready"})
    reason = waiting.model_copy(update={"reason": "PreparingModel"})
    rest = before.conditions[1:]
    for change, want in (
        ({"replicas": 3, "ready_replicas": 2}, True),
        ({"conditions": (words, *rest)}, True),
        ({"conditions": (reason, *rest)}, False),
        ({"conditions": rest}, False),
        ({"observed_generation": 7}, False),
        ({"selector": "another"}, False),
    ):
        assert differs_only_in_progress(before, before.model_copy(update=change)) is want, change
