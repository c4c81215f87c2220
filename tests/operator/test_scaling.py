"""An autoscaler takes over the number of pods, and gives it back."""

from __future__ import annotations

from dataclasses import replace

from embedserve_operator.drift import reason_to_apply
from embedserve_operator.plan import HandOver
from embedserve_operator.specs.metadata import ref_of
from tests.operator.builders import OTHER_REPO, REPO, Cluster, hub_spec, resource

SCALED = hub_spec(autoscaling={"minReplicas": 2, "maxReplicas": 6})


def with_pods(cluster: Cluster, count: int) -> Cluster:
    """After an autoscaler wrote a number."""
    children = [
        {**c, "spec": {**c["spec"], "replicas": count}} if c["kind"] == "Deployment" else c
        for c in cluster.children
    ]
    return replace(cluster, children=tuple(children))


def replicas(cluster: Cluster) -> list[object]:
    return [c["spec"].get("replicas") for c in cluster.plan().children if c["kind"] == "Deployment"]


def test_a_new_service_starts_with_the_fewest_pods_and_never_sends_the_number() -> None:
    cluster = Cluster(resource(SCALED))
    assert replicas(cluster) == [None]
    assert cluster.plan().hand_over == HandOver(f"docs-{cluster.revision()}", 2)


def test_what_runs_is_what_the_autoscaler_starts_from() -> None:
    fixed = Cluster(resource(hub_spec(replicas=4))).applied().rolled_out().published()
    hand_over = fixed.changed(SCALED).plan().hand_over
    assert hand_over is not None
    assert hand_over.replicas == 4


def test_the_number_is_handed_over_once() -> None:
    assert with_pods(Cluster(resource(SCALED)).applied(), 5).plan().hand_over is None


def test_a_number_that_the_autoscaler_wrote_is_left_alone_and_complete_when_it_runs() -> None:
    scaled = with_pods(Cluster(resource(SCALED)).applied(), 5)
    world, plan = scaled.world(), scaled.plan()
    assert all(reason_to_apply(child, world.child(ref_of(child))) is None for child in plan.children)
    conditions = scaled.rolled_out().conditions()
    assert set(conditions) == {"Ready"}
    assert conditions["Ready"].message == "5 of 5 replicas are ready"


def test_going_back_to_a_number_sends_it_again_and_removes_the_autoscaler() -> None:
    scaled = with_pods(Cluster(resource(SCALED)).applied(), 5)
    fixed = scaled.changed(hub_spec(replicas=3))
    assert replicas(fixed) == [3]
    assert fixed.plan().hand_over is None
    assert [child.ref.kind for child in fixed.plan().prune] == ["HorizontalPodAutoscaler"]


def test_a_new_model_comes_up_at_the_size_of_the_old_one_which_keeps_its_autoscaler() -> None:
    old = with_pods(Cluster(resource(SCALED)).applied(), 5).rolled_out().published()
    change = old.changed({**SCALED, "model": hub_spec(OTHER_REPO)["model"]})
    hand_over = change.plan().hand_over
    assert hand_over is not None
    assert hand_over.replicas == 5
    after = change.applied()
    assert len(after.names("HorizontalPodAutoscaler")) == 2
    assert after.service_revision() == after.revision(hub_spec(REPO))


def test_suspending_stops_all_pods_and_the_autoscaler() -> None:
    cluster = Cluster(resource(SCALED)).applied().changed({**SCALED, "suspend": True})
    assert replicas(cluster) == [0]
    assert cluster.applied().names("HorizontalPodAutoscaler") == []
