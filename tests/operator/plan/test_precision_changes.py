"""A change of precision or engine that keeps the vector space: inside one Deployment, or beside the old pods."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from embedserve_operator.manifests.metadata import REVISION_LABEL
from embedserve_operator.state.pods import PodReplies, SelfCheckResult
from tests.operator.builders import REPORT, Cluster, hub_spec, resource

SPACE = str(REPORT["vectorSpace"])
BLUE_GREEN: dict[str, Any] = {"rollout": {"onPrecisionChange": "BlueGreen"}}
BEFORE: dict[str, Any] = {"model": {"precision": "float32"}}


def serving(spec: dict[str, Any]) -> Cluster:
    return Cluster(resource(spec)).applied().rolled_out().applied().published()


def selected_revisions(cluster: Cluster) -> set[str | None]:
    """The revisions that the Services lead to, that of the name and that of the space; None for any."""
    services = [child for child in cluster.children if child["kind"] == "Service"]
    assert len(services) == 2
    return {service["spec"]["selector"].get(REVISION_LABEL) for service in services}


@pytest.mark.parametrize(
    ("then", "is_beside"),
    [
        pytest.param({"model": {"precision": "bfloat16"}}, True, id="precision"),
        pytest.param({"model": {"precision": "float32", "minCosine": 0.99}}, True, id="floor of 8 bit"),
        pytest.param({**BEFORE, "engine": "torch"}, True, id="engine"),
        pytest.param({**BEFORE, "onnx": {"convert": "Never"}}, True, id="conversion"),
        pytest.param({**BEFORE, "hardware": {"class": "cpu-x86"}}, True, id="hardware class"),
        pytest.param({**BEFORE, "replicas": 2}, False, id="replicas"),
        pytest.param({**BEFORE, "servedModelName": "other"}, False, id="served name"),
    ],
)
@pytest.mark.parametrize("policy", ["BlueGreen", "Rolling"])
def test_what_computes_the_vectors_is_part_of_the_revision_where_the_manifest_says_so(
    then: dict[str, Any], is_beside: bool, policy: str
) -> None:
    rollout: dict[str, Any] = {"rollout": {"onPrecisionChange": policy}}
    cluster = Cluster()
    first, second = (cluster.revision(hub_spec(**spec, **rollout)) for spec in (BEFORE, then))
    assert (first != second) is (is_beside and policy == "BlueGreen")


def test_the_default_keeps_revisions_as_they_are_and_replaces_pods() -> None:
    cluster = Cluster()
    assert cluster.revision(hub_spec(**BEFORE)) == cluster.revision(hub_spec())


def test_no_service_leads_to_old_and_new_pods_of_one_space() -> None:
    then = hub_spec(**BLUE_GREEN, model={"precision": "bfloat16"})
    before = serving(hub_spec(**BLUE_GREEN, **BEFORE))
    old, new = before.revision(), before.revision(then)
    assert selected_revisions(before) == {old}
    changed = before.changed(then).applied()
    assert len(changed.names("Deployment")) == 2
    assert selected_revisions(changed) == {old}
    switched = changed.rolled_out().applied()
    assert selected_revisions(switched) == {new}
    assert switched.applied().names("Deployment") == [f"docs-{new}"], "nothing is kept of the same space"


@pytest.mark.parametrize(
    ("prompts", "is_same"),
    [
        pytest.param({"prompts": {"query": "query: "}}, False, id="a prompt that a model may have too"),
        pytest.param({"prompts": {"query": "other: "}, "promptName": "query"}, False, id="the default one"),
        pytest.param({}, True, id="none"),
    ],
)
def test_a_prompt_that_may_replace_one_of_the_model_makes_a_revision(
    prompts: dict[str, Any], is_same: bool
) -> None:
    cluster = Cluster()
    assert (cluster.revision(hub_spec(**prompts)) == cluster.revision(hub_spec())) is is_same


def replied(cluster: Cluster, *computes: str | None) -> Cluster:
    """After the pods have said what computes their vectors; None: an older runtime, which does not say it."""
    replies = {
        pod.run_id: PodReplies(SelfCheckResult(SPACE, 384, "", compute))
        for pod, compute in zip(cluster.observed().pods, computes, strict=True)
    }
    return replace(cluster, replies=replies)


@pytest.mark.parametrize(
    ("computes", "want"),
    [
        pytest.param(("float32", "float32"), ("float32",), id="the same"),
        pytest.param(("int8@1f0c54d0a9e2", "float32"), ("float32", "int8@1f0c54d0a9e2"), id="several"),
        pytest.param((None, None), None, id="not said"),
    ],
)
def test_the_status_says_what_computes_the_vectors(
    computes: tuple[str | None, ...], want: tuple[str, ...] | None
) -> None:
    cluster = serving(hub_spec(replicas=2))
    space = replied(cluster, *computes).status().vector_space
    assert space is not None
    assert (space.id, space.compute) == (SPACE, want)


def test_the_status_says_how_far_off_the_furthest_pod_is_and_keeps_it_while_no_pod_says_it() -> None:
    cluster = serving(hub_spec(replicas=2))
    first, second = cluster.observed().pods
    checks = {
        first.run_id: PodReplies(SelfCheckResult(SPACE, 384, "", "int8", 0.9921)),
        second.run_id: PodReplies(SelfCheckResult(SPACE, 384, "", "int8", 0.9920)),
    }
    reporting = replace(cluster, replies=checks).published()
    for reported in (reporting, replied(reporting, None, None)):
        space = reported.status().vector_space
        assert space is not None
        assert (space.compute, space.min_cosine) == (("int8",), 0.9920)


def test_what_was_said_stays_in_the_status_while_no_pod_says_it() -> None:
    reporting = replied(serving(hub_spec()), "int8@1f0c54d0a9e2").published()
    space = replied(reporting, None).status().vector_space
    assert space is not None
    assert space.compute == ("int8@1f0c54d0a9e2",)


def test_one_pod_of_a_template_is_asked_and_none_again() -> None:
    cluster = serving(hub_spec(replicas=2))
    assert cluster.plan().self_checks == (), "the pods have said it"
    silent = replace(cluster, replies={pod.run_id: PodReplies() for pod in cluster.observed().pods})
    assert len(silent.plan().self_checks) == 1
