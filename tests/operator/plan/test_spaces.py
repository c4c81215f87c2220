"""Vector spaces in the plan: what is said of a lack of room and of a branch that moved, and what goes with a switch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.operator.builders import (
    NOW,
    OTHER_REPO,
    REPO,
    REPORT,
    Cluster,
    hub_spec,
    ready,
    resource,
)

OTHER: dict[str, Any] = {**REPORT, "source": OTHER_REPO, "vectorSpace": "vs1-fedcba9876543210fedc"}
OWN, OTHERS = REPORT["vectorSpace"], OTHER["vectorSpace"]
WAITING = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
}
SCALED: dict[str, Any] = {"autoscaling": {"minReplicas": 2, "maxReplicas": 4}}


def serving(spec: dict[str, Any]) -> Cluster:
    return Cluster(resource(spec)).applied().rolled_out().applied().published()


def switched(first: dict[str, Any], then: dict[str, Any]) -> Cluster:
    """After the change of the model, with the old one kept."""
    changed = serving(first).changed(then).applied().rolled_out(report=OTHER)
    return changed.applied().published().applied().rolled_out(report=OTHER)


def test_a_lack_of_room_beside_the_old_model_leaves_the_choice_to_the_user() -> None:
    waiting = serving(hub_spec()).changed(hub_spec(OTHER_REPO)).applied().started(conditions=[WAITING])
    conditions = waiting.conditions()
    assert (conditions["Ready"].status, conditions["Ready"].reason) == ("True", "PreviousRevisionServing")
    assert conditions["Reconciling"].reason == "NoRoomForBoth"
    message = conditions["Reconciling"].message
    for words in ("Insufficient nvidia.com/gpu", "onNewVectorSpace: InPlace", "revert the change"):
        assert words in message
    assert "keepPrevious" not in message, "nothing is kept"
    assert waiting.plan().prune == ()


def test_what_is_kept_of_earlier_models_is_one_of_the_choices() -> None:
    third = hub_spec(REPO, model={"pooling": "cls"})
    waiting = switched(hub_spec(), hub_spec(OTHER_REPO)).changed(third).applied()
    message = waiting.started(conditions=[WAITING], spec=third).conditions()["Reconciling"].message
    assert "remove the earlier models that are kept (1) with spec.rollout.keepPrevious: 0s" in message


def test_a_pod_of_a_branch_that_has_moved_is_told_to_pass_on_and_the_user_to_name_a_commit() -> None:
    cluster = serving(hub_spec(replicas=2))
    first, second = cluster.pods
    second = ready(second, OTHER)
    moved = replace(cluster, pods=(first, second))
    conditions = moved.conditions()
    assert conditions["Ready"].status == "True"
    assert conditions["Stalled"].reason == "MixedVectorSpaces"
    assert f"docs-{moved.revision()}-1 ({OTHERS})" in conditions["Stalled"].message
    messages = {(notice.pod.name, notice.space) for notice in moved.plan().messages}
    assert (second["metadata"]["name"], OWN) in messages
    assert moved.status().vector_space == cluster.status().vector_space


def test_when_all_pods_make_another_space_that_is_the_one_served() -> None:
    cluster = serving(hub_spec())
    moved = replace(cluster, pods=tuple(ready(pod, OTHER) for pod in cluster.pods))
    space = moved.status().vector_space
    assert space is not None
    assert (space.id, [previous.id for previous in space.previous]) == (OTHERS, [OWN])


def test_a_service_that_has_always_been_alone_has_nothing_to_tell_its_pods() -> None:
    assert serving(hub_spec(replicas=3)).plan().messages == ()


def test_each_deployment_has_a_budget_of_its_own() -> None:
    budgets = {
        received["metadata"]["name"]: received["spec"]["selector"]["matchLabels"]["embedserve.dev/revision"]
        for received in switched(hub_spec(replicas=2), hub_spec(OTHER_REPO, replicas=2)).plan().children
        if received["kind"] == "PodDisruptionBudget"
    }
    cluster = Cluster()
    assert budgets == {
        "docs": cluster.revision(hub_spec(OTHER_REPO)),
        "docs-01234567": cluster.revision(hub_spec()),
    }


def test_a_kept_model_loses_its_autoscaler_and_keeps_its_pods() -> None:
    after = switched(hub_spec(**SCALED), hub_spec(OTHER_REPO, **SCALED)).applied()
    assert len(after.names("Deployment")) == 2
    assert after.names("HorizontalPodAutoscaler") == [f"docs-{after.revision()}"]


def test_the_end_of_what_is_kept_wakes_the_operator() -> None:
    cluster = switched(hub_spec(), hub_spec(OTHER_REPO, rollout={"keepPrevious": "90m"}))
    assert cluster.plan().wake_after == 5400
    assert replace(cluster, now=NOW + 5399).plan().wake_after == 1
    late = replace(cluster, now=NOW + 5400).plan()
    assert late.wake_after is None
    assert {child.ref.kind for child in late.prune} >= {"Deployment", "Service"}
