"""What serves while the manifest asks for another model: it keeps the name until the other one has passed its
self-check, and gets every edit that came after the new model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from tests.operator.builders import (
    OTHER_REPO,
    REPO,
    REPORT,
    SETTINGS,
    Cluster,
    hub_spec,
    resource,
    with_pods,
)

OTHER: dict[str, Any] = {**REPORT, "source": OTHER_REPO, "vectorSpace": "vs1-fedcba9876543210fedc"}
HOLD = {"hold": True}


def serving(**more: Any) -> Cluster:
    return Cluster(resource(hub_spec(**more))).applied().rolled_out().applied().published()


def build_changed_spec(**more: Any) -> dict[str, Any]:
    """The manifest with the other model, which is held back."""
    return hub_spec(OTHER_REPO, rollout=HOLD, **more)


def start_held_change(before: Cluster | None = None, **more: Any) -> Cluster:
    """Once the other model is ready at its own name. `more` came in the same edit."""
    changed = (before or serving()).changed(build_changed_spec(**more)).applied()
    return changed.rolled_out(report=OTHER).published().applied().published()


def old_name(cluster: Cluster, **more: Any) -> str:
    return f"docs-{cluster.revision(hub_spec(REPO, **more))}"


def deployment(cluster: Cluster, name: str) -> dict[str, Any]:
    """A Deployment as the cluster has it."""
    (manifest,) = [
        received
        for received in cluster.children
        if received["kind"] == "Deployment" and received["metadata"]["name"] == name
    ]
    return manifest


def container(received: dict[str, Any]) -> dict[str, Any]:
    first: dict[str, Any] = received["spec"]["template"]["spec"]["containers"][0]
    return first


def test_a_stopped_service_keeps_its_model_and_comes_back_with_it_although_another_is_asked_for() -> None:
    cluster = start_held_change()
    old = cluster.service_revision()
    assert old == cluster.revision(hub_spec(REPO))
    stopped = cluster.changed(build_changed_spec(suspend=True)).applied()
    stopped = stopped.rolled_out(hub_spec(REPO)).rolled_out(report=OTHER).published()
    stopped = replace(stopped.applied().published(), pods=())
    assert [deployment(stopped, name)["spec"]["replicas"] for name in stopped.names("Deployment")] == [0, 0]
    assert stopped.service_revision() == old
    assert {kind: condition.reason for kind, condition in stopped.conditions().items()} == {
        "Ready": "Suspended"
    }
    resuming = stopped.changed(build_changed_spec())
    assert resuming.conditions()["Ready"].status == "False", "no pod of the old model runs yet"
    resumed = resuming.applied()
    assert resumed.conditions()["Ready"].status == "False"
    assert [deployment(resumed, name)["spec"]["replicas"] for name in resumed.names("Deployment")] == [1, 1]
    back = resumed.rolled_out(report=OTHER).applied()
    assert back.service_revision() == old, "hold is not skipped where the old pods come back later"
    back = back.rolled_out(hub_spec(REPO)).applied().published()
    assert back.status().rollout is not None
    assert back.conditions()["Ready"].reason == "Held"
    assert back.changed(hub_spec(OTHER_REPO)).applied().service_revision() == cluster.revision()


def test_a_broken_model_does_not_take_the_name_of_a_stopped_service() -> None:
    stopped = serving().changed(hub_spec(OTHER_REPO, suspend=True)).applied()
    stopped = replace(stopped.rolled_out(hub_spec(REPO)).applied().published(), pods=())
    resumed = stopped.changed(hub_spec(OTHER_REPO)).applied().started().applied()
    assert resumed.service_revision() == stopped.revision(hub_spec(REPO))
    assert len(resumed.names("Deployment")) == 2


def test_a_model_that_its_autoscaler_has_scaled_to_zero_keeps_the_name() -> None:
    scaled = {"autoscaling": {"minReplicas": 1, "maxReplicas": 4}}
    idle = with_pods(serving(**scaled), 0).rolled_out(hub_spec(REPO, **scaled))
    cluster = start_held_change(replace(idle, pods=()), **scaled)
    assert cluster.service_revision() == cluster.revision(hub_spec(REPO))
    assert old_name(cluster) in cluster.names("Deployment")


@pytest.mark.parametrize(
    ("more", "path", "want"),
    [
        pytest.param({"replicas": 4}, ("spec", "replicas"), 4, id="kubectl scale"),
        pytest.param(
            {"resources": {"limits": {"memory": "9Gi"}}},
            ("spec", "template", "spec", "containers", 0, "resources", "limits", "memory"),
            "9Gi",
            id="resources",
        ),
        pytest.param(
            {"pod": {"annotations": {"team": "search"}}},
            ("spec", "template", "metadata", "annotations", "team"),
            "search",
            id="what pods carry",
        ),
    ],
)
@pytest.mark.parametrize("state", ["held", "preparing"])
def test_a_later_edit_is_made_to_both_models(
    more: dict[str, Any], path: tuple[str | int, ...], want: object, state: str
) -> None:
    cluster = start_held_change() if state == "held" else serving().changed(build_changed_spec()).applied()
    edited = cluster.changed(build_changed_spec(**more)).applied()
    assert len(edited.names("Deployment")) == 2
    for name in edited.names("Deployment"):
        value: Any = deployment(edited, name)
        for step in path:
            value = value[step]
        assert value == want, name
    assert edited.applied().children == edited.children, "nothing is written again"


def test_new_keys_and_images_reach_what_serves() -> None:
    cluster = start_held_change()
    auth = {"secretRef": {"name": "new-keys", "key": "keys"}}
    images = {
        name: replace(image, reference=f"{image.reference}-2") for name, image in SETTINGS.images.items()
    }
    later = replace(
        cluster.changed(build_changed_spec(auth=auth)), settings=replace(SETTINGS, images=images)
    ).applied()
    old = deployment(later, old_name(later))
    assert container(old)["image"] == "embedserve-runtime:test-cpu-2"
    assert "new-keys" in str(old["spec"]["template"]["spec"]["volumes"])


def test_a_raised_maximum_reaches_the_autoscaler_of_what_serves() -> None:
    def scaled(most: int) -> dict[str, Any]:
        return {"autoscaling": {"minReplicas": 1, "maxReplicas": most}}

    cluster = (
        start_held_change(serving(**scaled(3)), **scaled(3))
        .changed(build_changed_spec(**scaled(9)))
        .applied()
    )
    (scaler,) = [received for received in cluster.children if received["kind"] == "HorizontalPodAutoscaler"]
    assert scaler["spec"]["scaleTargetRef"]["name"] == old_name(cluster)
    assert scaler["spec"]["maxReplicas"] == 9


def test_what_comes_with_the_new_model_is_not_done_to_the_old_one() -> None:
    served = serving(replicas=3)
    before = deployment(served, old_name(served))
    change = {
        "replicas": 1,
        "resources": {"limits": {"memory": "1Gi"}},
        "batching": {"maxClientBatchSize": 7},
    }
    cluster = start_held_change(served, **change)
    assert deployment(cluster, old_name(cluster))["spec"] == before["spec"]
    edited = cluster.changed(
        build_changed_spec(**{**change, "batching": {"maxClientBatchSize": 8}})
    ).applied()
    old = deployment(edited, old_name(edited))
    assert old["spec"]["replicas"] == 3
    assert "memory" not in container(old)["resources"]["limits"]
    mounted = old["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"]
    (content,) = [
        received["data"]["runtime.yaml"]
        for received in edited.children
        if received["metadata"]["name"] == mounted
    ]
    config = yaml.safe_load(content)
    assert (config["model"]["source"], config["batching"]["max_client_batch_size"]) == (REPO, 8)


@pytest.mark.parametrize(
    ("change", "want"),
    [({"replicas": 2}, 2), ({"autoscaling": {"minReplicas": 1, "maxReplicas": 4}}, 1), ({"replicas": 0}, 0)],
    ids=str,
)
def test_a_model_without_pods_comes_back_where_the_edit_that_brings_another_model_asks_for_pods(
    change: dict[str, Any], want: int
) -> None:
    stopped = with_pods(serving(replicas=0), 0)
    changed = stopped.changed(build_changed_spec(**change)).applied()
    assert changed.service_revision() == stopped.revision(hub_spec(REPO))
    assert deployment(changed, old_name(changed))["spec"]["replicas"] == want
    assert changed.conditions()["Ready"].status == ("True" if want == 0 else "False")


def test_taking_the_change_back_leaves_what_serves_as_the_manifest_says() -> None:
    served = serving()
    back = start_held_change(served, replicas=2).changed(hub_spec()).applied().applied()
    old = deployment(back, old_name(back))
    assert not old["metadata"]["annotations"].get("embedserve.dev/followed")
    assert old["spec"] == deployment(served, old_name(served))["spec"]
    assert set(back.conditions()) == {"Ready"}


def test_a_deployment_that_does_not_say_what_it_was_made_from_stops_and_comes_back_as_it_was() -> None:
    cluster = start_held_change(serving(replicas=2), replicas=2)
    old = old_name(cluster)

    def forget(received: dict[str, Any]) -> dict[str, Any]:
        annotations = dict(received["metadata"]["annotations"])
        for name in ("embedserve.dev/settings", "embedserve.dev/followed"):
            annotations.pop(name, None)
        return {**received, "metadata": {**received["metadata"], "annotations": annotations}}

    blank = replace(
        cluster,
        children=tuple(
            forget(received)
            if received["metadata"]["name"] == old and received["kind"] == "Deployment"
            else received
            for received in cluster.children
        ),
    )
    stopped = blank.changed(build_changed_spec(replicas=2, suspend=True)).applied()
    assert deployment(stopped, old)["spec"] == {**deployment(blank, old)["spec"], "replicas": 0}
    assert (
        deployment(stopped.changed(build_changed_spec(replicas=2)).applied(), old)["spec"]
        == deployment(blank, old)["spec"]
    )


def test_what_is_kept_of_an_earlier_model_stops_with_the_service_and_comes_back_with_it() -> None:
    switched = serving().changed(hub_spec(OTHER_REPO)).applied().rolled_out(report=OTHER)
    switched = switched.applied().published().applied()
    old = old_name(switched)
    stopped = switched.changed(hub_spec(OTHER_REPO, suspend=True)).applied().published()
    assert deployment(stopped, old)["spec"]["replicas"] == 0
    back = stopped.changed(hub_spec(OTHER_REPO)).applied()
    assert deployment(back, old)["spec"] == deployment(switched, old)["spec"]


def switch_model(**more: Any) -> Cluster:
    """Once the other model has the name, and the pods of the first one stay for a way back."""
    switched = serving(**more).changed(hub_spec(OTHER_REPO, **more)).applied().rolled_out(report=OTHER)
    return switched.applied().published().applied().published()


def test_what_is_kept_gets_new_keys_images_and_resources_and_keeps_its_number() -> None:
    cluster = switch_model(replicas=2)
    old = old_name(cluster)
    assert deployment(cluster, old)["spec"]["replicas"] == 2
    auth = {"secretRef": {"name": "new-keys", "key": "keys"}}
    edited = hub_spec(
        OTHER_REPO, replicas=5, auth=auth, resources={"limits": {"memory": "9Gi"}}, servedModelName="docs"
    )
    images = {
        name: replace(image, reference=f"{image.reference}-2") for name, image in SETTINGS.images.items()
    }
    later = replace(cluster.changed(edited), settings=replace(SETTINGS, images=images)).applied()
    retained = deployment(later, old)
    assert container(retained)["image"] == "embedserve-runtime:test-cpu-2"
    assert container(retained)["resources"]["limits"]["memory"] == "9Gi"
    assert "new-keys" in str(retained["spec"]["template"]["spec"]["volumes"])
    assert retained["spec"]["replicas"] == 2
    mounted = retained["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"]
    (content,) = [received["data"] for received in later.children if received["metadata"]["name"] == mounted]
    read = yaml.safe_load(content["runtime.yaml"])
    assert (read["model"]["source"], read["server"]["served_model_name"]) == (REPO, "docs")
    assert later.applied().children == later.children, "nothing is written again"


def test_what_is_kept_and_was_autoscaled_gets_no_number_and_no_autoscaler() -> None:
    scaled = {"autoscaling": {"minReplicas": 1, "maxReplicas": 4}}
    cluster = switch_model(**scaled)
    old = old_name(cluster)
    before = deployment(cluster, old)["spec"]["replicas"]
    edited = hub_spec(OTHER_REPO, autoscaling={"minReplicas": 2, "maxReplicas": 9}, servedModelName="docs")
    plan = cluster.changed(edited).plan()
    (manifest,) = [
        received
        for received in plan.children
        if received["metadata"]["name"] == old and received["kind"] == "Deployment"
    ]
    assert "replicas" not in manifest["spec"]
    assert deployment(cluster.changed(edited).applied(), old)["spec"]["replicas"] == before
    (scaler,) = [received for received in plan.children if received["kind"] == "HorizontalPodAutoscaler"]
    assert scaler["spec"]["scaleTargetRef"]["name"] != old


def test_what_comes_with_a_third_model_is_not_done_to_what_is_kept() -> None:
    cluster = switch_model()
    old = old_name(cluster)
    before = deployment(cluster, old)["spec"]
    third = cluster.changed(hub_spec("acme/third", resources={"limits": {"memory": "9Gi"}})).applied()
    assert deployment(third, old)["spec"] == before
