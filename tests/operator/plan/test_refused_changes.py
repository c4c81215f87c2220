"""A change of the model that is refused: the model stays, and everything else of the manifest is done for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from embedserve_operator.plan import Plan
from tests.operator.builders import OTHER_REPO, REPO, REPORT, Cluster, fetched, hub_spec, resource

OTHER_SPACE = "vs1-fedcba9876543210fedc"
REFUSE = {"onNewVectorSpace": "Refuse"}


def build_changed_spec(**more: Any) -> dict[str, Any]:
    """The manifest with the refused model."""
    return hub_spec(OTHER_REPO, rollout=REFUSE, **more)


def serving(**more: Any) -> Cluster:
    return Cluster(resource(hub_spec(REPO, **more))).applied().rolled_out().applied().published()


def refused(before: Cluster | None = None, **more: Any) -> Cluster:
    """Once the new model's pods have said what they make."""
    cluster = (before or serving()).changed(build_changed_spec(**more)).applied()
    cluster = cluster.started(fetched({**REPORT, "vectorSpace": OTHER_SPACE})).published()
    return cluster.applied().published()


def deployment(plan: Plan) -> dict[str, Any]:
    (manifest,) = [child for child in plan.children if child["kind"] == "Deployment"]
    return manifest


def test_the_pods_of_the_refused_model_go_and_those_that_serve_stay() -> None:
    cluster = refused()
    assert cluster.names("Deployment") == [f"docs-{cluster.revision(hub_spec(REPO))}"]
    assert cluster.service_revision() == cluster.revision(hub_spec(REPO))
    rollout = cluster.status().rollout
    assert rollout is not None
    assert (rollout.state, rollout.vector_space) == ("Refused", OTHER_SPACE)
    assert cluster.applied().children == cluster.children, "nothing is written again"


@pytest.mark.parametrize(
    ("more", "path", "want"),
    [
        pytest.param({"replicas": 3}, ("replicas",), 3, id="replicas"),
        pytest.param({"suspend": True}, ("replicas",), 0, id="suspend"),
        pytest.param(
            {"resources": {"limits": {"memory": "2Gi"}}},
            ("template", "spec", "containers", 0, "resources", "limits", "memory"),
            "2Gi",
            id="resources",
        ),
        pytest.param(
            {"pod": {"nodeSelector": {"rack": "9"}}},
            ("template", "spec", "nodeSelector"),
            {"rack": "9"},
            id="where the pods run",
        ),
    ],
)
def test_other_changes_are_made_to_the_model_that_serves(
    more: dict[str, Any], path: tuple[str | int, ...], want: object
) -> None:
    changed = refused().changed(build_changed_spec(**more))
    plan = changed.plan()
    value: Any = deployment(plan)["spec"]
    for step in path:
        value = value[step]
    assert value == want
    assert deployment(plan)["metadata"]["name"] == f"docs-{Cluster().revision(hub_spec(REPO))}"
    conditions = {condition.type: condition.reason for condition in changed.status().conditions}
    assert conditions["Stalled"] == "VectorSpaceChange"
    assert "Reconciling" not in conditions


def test_the_configuration_is_that_of_the_model_that_serves_with_the_new_settings() -> None:
    plan = refused().changed(build_changed_spec(batching={"maxClientBatchSize": 7})).plan()
    configs = [child["data"] for child in plan.children if child["kind"] == "ConfigMap"]
    (content,) = [yaml.safe_load(data["runtime.yaml"]) for data in configs if "runtime.yaml" in data]
    assert content["model"]["source"] == REPO
    assert content["batching"]["max_client_batch_size"] == 7


def test_an_autoscaler_takes_over_the_number_of_the_pods_that_serve() -> None:
    cluster = refused().changed(build_changed_spec(autoscaling={"minReplicas": 2, "maxReplicas": 5}))
    plan = cluster.plan()
    (scaler,) = [child for child in plan.children if child["kind"] == "HorizontalPodAutoscaler"]
    name = f"docs-{cluster.revision(hub_spec(REPO))}"
    assert scaler["spec"]["scaleTargetRef"]["name"] == name
    assert [(transfer.deployment, transfer.replicas) for transfer in plan.ownership_transfers] == [(name, 2)]


def test_a_stopped_service_stays_refused_and_comes_back_with_the_model_that_it_had() -> None:
    stopped = (
        refused().changed(build_changed_spec(suspend=True)).applied().rolled_out(hub_spec(REPO)).published()
    )
    conditions = stopped.conditions()
    assert (conditions["Ready"].reason, conditions["Stalled"].reason) == ("Suspended", "VectorSpaceChange")
    assert stopped.applied().service_revision() == stopped.revision(hub_spec(REPO))
    back = stopped.changed(build_changed_spec())
    assert deployment(back.plan())["spec"]["replicas"] == 1
    assert back.applied().service_revision() == back.revision(hub_spec(REPO))


def test_a_model_that_is_changed_while_the_service_is_stopped_waits_for_pods_that_say_what_it_makes() -> None:
    cluster = serving().changed(build_changed_spec(suspend=True)).applied().published()
    assert cluster.service_revision() == cluster.revision(hub_spec(REPO))
    assert deployment(cluster.plan())["spec"]["replicas"] == 0
    assert "unknown until one of its pods runs" in cluster.conditions()["Stalled"].message
    resumed = cluster.rolled_out(hub_spec(REPO)).changed(build_changed_spec()).applied()
    assert len(resumed.names("Deployment")) == 2, "the new model's pods come up to be asked"
    assert resumed.service_revision() == cluster.revision(hub_spec(REPO))
    again = resumed.started(fetched({**REPORT, "vectorSpace": OTHER_SPACE}))
    assert deployment(again.plan())["spec"]["replicas"] == 1
    assert again.conditions()["Stalled"].reason == "VectorSpaceChange"


def test_what_keeps_the_other_changes_from_being_made_is_told_beside_the_refusal() -> None:
    old = hub_spec(REPO)
    cluster = refused().changed(build_changed_spec(resources={"requests": {"memory": "900Gi"}})).applied()
    unscheduled = {
        "conditions": [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": "0/1 nodes are available: 1 Insufficient memory",
            }
        ]
    }
    stuck = cluster.started(spec=old, **unscheduled)
    message = stuck.conditions()["Stalled"].message
    assert "Insufficient memory" in message
    assert OTHER_SPACE in message


def test_taking_the_change_back_changes_no_pod() -> None:
    cluster = refused()
    back = cluster.changed(hub_spec(REPO))
    assert set(back.conditions()) == {"Ready"}
    stored = [
        [(received["kind"], received.get("spec")) for received in cluster_after.children]
        for cluster_after in (back.applied(), cluster)
    ]
    assert stored[0] == stored[1]
    assert back.status().rollout is None


def test_where_the_served_model_is_not_declared_nothing_is_touched() -> None:
    """A Deployment that does not say what it was made from, of another version or edited."""
    cluster = refused()
    blank = tuple(
        {**child, "metadata": {**child["metadata"], "annotations": {}}}
        if child["kind"] == "Deployment"
        else child
        for child in cluster.children
    )
    changed = replace(cluster, children=blank).changed(build_changed_spec(replicas=5))
    plan, status = changed.plan(), changed.status()
    assert (plan.children, plan.prune) == ((), ())
    stalled = {condition.type: condition for condition in status.conditions}["Stalled"]
    assert "it is not known how the model that is served was declared" in stalled.message
    assert status.rollout is not None
    assert status.rollout.vector_space == OTHER_SPACE


def test_settings_that_do_not_go_with_the_model_that_serves_are_named() -> None:
    served = serving(model={"precision": "int8"}, onnx={"precision": "int8"})
    old = hub_spec(REPO, model={"precision": "int8"}, onnx={"precision": "int8"})
    cluster = refused(served)
    assert cluster.service_revision() == cluster.revision(old)
    message = cluster.conditions()["Stalled"].message
    assert "it does not fit the model that is served" in message
    assert "int8 is made by conversion" in message


IN_PLACE = {"onNewVectorSpace": "InPlace", "hold": True}


@pytest.mark.parametrize("is_lost", [False, True], ids=["", "after the status was lost"])
def test_a_model_that_is_held_and_has_no_room_is_not_begun(is_lost: bool) -> None:
    cluster = serving().changed(hub_spec(OTHER_REPO, replicas=2, rollout=IN_PLACE))
    if is_lost:
        cluster = replace(cluster, resource={**cluster.resource, "status": {}})
    held_cluster = cluster.applied().published()
    assert held_cluster.names("Deployment") == [f"docs-{held_cluster.revision(hub_spec(REPO))}"]
    plan = held_cluster.plan()
    assert deployment(plan)["spec"]["replicas"] == 2, "the other edits are made to what serves"
    held_cluster = held_cluster.applied().rolled_out(hub_spec(REPO)).published()
    (ready,) = held_cluster.status().conditions
    assert (ready.type, ready.status, ready.reason) == ("Ready", "True", "Held")
    assert "does not start until spec.rollout.hold is false" in ready.message
    rollout = held_cluster.status().rollout
    assert rollout is not None
    assert (rollout.state, rollout.url) == ("Held", None)
    let_go = held_cluster.changed(
        hub_spec(OTHER_REPO, replicas=2, rollout={**IN_PLACE, "hold": False})
    ).applied()
    assert let_go.service_revision() == let_go.revision(hub_spec(OTHER_REPO))
