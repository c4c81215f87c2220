"""What the operator reads of objects, whatever somebody has written into them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest

from embedserve_operator.adapter.registration import find_providers
from embedserve_operator.adapter.targets import read_target
from embedserve_operator.kube.objects import Manifest
from embedserve_operator.kube.views.cluster import APIService, Lease, Node
from embedserve_operator.kube.views.objects import Object
from embedserve_operator.kube.views.pods import Pod
from embedserve_operator.kube.views.resource import EmbeddingServiceObject
from embedserve_operator.kube.views.workloads import (
    Deployment,
    HorizontalPodAutoscaler,
    Job,
    PersistentVolumeClaim,
)
from embedserve_operator.observe.jobs import read_claim, read_jobs
from embedserve_operator.observe.nodes import read_node
from embedserve_operator.observe.pods import read_pod
from embedserve_operator.observe.reports import TerminationMessage
from embedserve_operator.observe.resource import read_claim_name, read_resource
from embedserve_operator.observe.workloads import read_autoscaler, read_deployment
from tests.operator.builders import REPORT, Cluster, failed, fetched, hub_spec, pod, ready, resource
from tests.operator.cache_builders import cached, claim, started, succeeded, with_claim

WRONG: tuple[Any, ...] = (None, 7, -0.5, True, "words", [], [7], ["words"], [[]], {}, {"words": 7})
"""One value of each type of JSON, and empty ones."""

POD = ready(pod("rev", "template", "docs-config"))
POD["spec"]["nodeName"] = "node-a"
POD["spec"]["containers"][0] |= {
    "env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}],
    "ports": [{"name": "management", "containerPort": 8081}],
}
POD["status"]["conditions"] += [
    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "Insufficient memory"}
]
BROKEN_POD = deepcopy(POD)
BROKEN_POD["status"] |= {
    "conditions": [],
    "containerStatuses": [failed("ModelInvalid", "TOKEN is wrong", retryable=False, container="runtime")],
}
CLUSTER = succeeded(started(with_claim(cached())))
(DEPLOYMENT,) = [child for child in CLUSTER.applied().rolled_out().children if child["kind"] == "Deployment"]
AUTOSCALER: Manifest = {
    "kind": "HorizontalPodAutoscaler",
    "metadata": {"name": "docs", "namespace": "search", "uid": "u"},
    "spec": {"scaleTargetRef": {"name": "docs-rev"}},
    "status": {
        "currentReplicas": 1,
        "desiredReplicas": 2,
        "currentMetrics": [{"pods": {"current": {"averageValue": "7"}}}],
        "conditions": [{"type": "ScalingActive", "status": "True", "reason": "Valid", "message": "it can"}],
    },
}
NODE: Manifest = {
    "metadata": {"name": "node-a", "labels": {"kubernetes.io/arch": "amd64"}},
    "spec": {"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}], "unschedulable": True},
    "status": {"allocatable": {"cpu": "8", "nvidia.com/gpu": "2"}},
}
API_SERVICE: Manifest = {
    "metadata": {"name": "v1beta2.custom.metrics.k8s.io"},
    "spec": {
        "group": "custom.metrics.k8s.io",
        "service": {"namespace": "m", "name": "p"},
        "caBundle": "UEVN",
    },
    "status": {"conditions": [{"type": "Available", "status": "True"}]},
}
LEASE: Manifest = {
    "metadata": {"name": "l", "resourceVersion": "1"},
    "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15, "leaseTransitions": 4},
}


def read_service(received: Any) -> object:
    parsed = EmbeddingServiceObject.parse(received)
    return read_resource(parsed), read_claim_name(parsed), parsed.partial_status


def read_job(received: Any) -> object:
    return read_jobs([Job.parse(received)], [Pod.parse(received) for received in CLUSTER.job_pods], {})


READERS: list[tuple[str, Callable[[Any], object], Manifest]] = [
    ("pod", lambda received: read_pod(Pod.parse(received)), POD),
    ("pod that fails", lambda received: read_pod(Pod.parse(received)), BROKEN_POD),
    ("pod to scrape", lambda received: read_target(Pod.parse(received)), POD),
    ("job", read_job, CLUSTER.jobs[0]),
    (
        "deployment",
        lambda received: read_deployment(Deployment.parse(received)),
        DEPLOYMENT,
    ),
    ("autoscaler", lambda received: read_autoscaler(HorizontalPodAutoscaler.parse(received)), AUTOSCALER),
    ("claim", lambda received: read_claim(PersistentVolumeClaim.parse(received)), claim("ReadWriteOnce")),
    ("node", lambda received: read_node(Node.parse(received)), NODE),
    ("api service", lambda received: find_providers([APIService.parse(received)], None), API_SERVICE),
    ("lease", lambda received: Lease.parse(received).spec, LEASE),
    ("resource", read_service, CLUSTER.published().resource),
]


def list_paths(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every place in a JSON value, the value itself among them."""
    yield path
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in steps:
        yield from list_paths(inner, (*path, step))


def put(value: Any, path: tuple[str | int, ...], new: Any) -> Any:
    """The value with another one at a place of it."""
    if not path:
        return new
    changed = deepcopy(value)
    place = changed
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = new
    return changed


@pytest.mark.parametrize(("read", "received"), [pytest.param(r, o, id=name) for name, r, o in READERS])
def test_no_value_anywhere_in_an_object_keeps_it_from_being_read(
    read: Callable[[Any], object], received: Manifest
) -> None:
    for path in list_paths(received):
        for wrong in WRONG:
            read(put(received, path, wrong))


@pytest.mark.parametrize(
    ("path", "wrong", "field", "want"),
    [
        pytest.param(("spec", "replicas"), "3", "desired_replicas", 0, id="a number as text"),
        pytest.param(("spec", "replicas"), None, "desired_replicas", 0, id="null for a number"),
        pytest.param(("status", "readyReplicas"), 2.5, "ready", 0, id="a fraction for a count"),
        pytest.param(("status",), "words", "available", 0, id="text for an object"),
        pytest.param(("metadata", "labels"), ["words"], "revision", "", id="a list for a map"),
        pytest.param(("status", "conditions"), {"type": "x"}, "creation_problem", "", id="a map for a list"),
    ],
)
def test_a_value_of_another_type_counts_as_missing_and_the_others_are_read(
    path: tuple[str | int, ...], wrong: Any, field: str, want: object
) -> None:
    state = read_deployment(Deployment.parse(put(DEPLOYMENT, path, wrong)))
    assert getattr(state, field) == want
    assert (state.name, state.template_hash) == (
        DEPLOYMENT["metadata"]["name"],
        DEPLOYMENT["spec"]["template"]["metadata"]["annotations"]["embedserve.dev/template"],
    )


def test_an_item_of_another_type_is_left_out_of_its_list_and_of_its_map() -> None:
    received = put(NODE, ("spec", "taints"), ["words", *NODE["spec"]["taints"], None])
    received = put(received, ("metadata", "labels", "odd"), 7)
    assert read_node(Node.parse(received)) == read_node(Node.parse(NODE))


def test_a_pod_with_a_status_of_another_form_does_not_keep_the_others_from_serving() -> None:
    served = Cluster(resource(hub_spec(replicas=2))).applied().rolled_out()
    odd = {**served.pods[0], "status": {"conditions": "words", "containerStatuses": [7, {"state": []}]}}
    cluster = Cluster(served.resource, served.children, (odd, served.pods[1]))
    assert [state.phase for state in cluster.observed().pods] == ["Pending", "Ready"]


@pytest.mark.parametrize("received", [None, 7, "words", [], [{}]])
def test_what_is_not_an_object_is_an_empty_one(received: Any) -> None:
    assert Object.parse(received) == Object.parse({})
    assert Object.parse_json(json.dumps(received)) == Object.parse({})


@pytest.mark.parametrize(
    "received", [POD, BROKEN_POD, *CLUSTER.job_pods], ids=["ready", "failing", "of a job"]
)
def test_the_text_that_is_kept_of_a_view_makes_the_same_view(received: Manifest) -> None:
    view = Pod.parse(received)
    assert Pod.parse_json(view.as_json()) == view


def test_a_controller_is_the_owner_that_says_so() -> None:
    owners = [{"uid": "one"}, {"uid": "two", "controller": True}]
    assert Object.parse({"metadata": {"ownerReferences": owners}}).metadata.controller_uid == "two"
    assert Object.parse({"metadata": {"ownerReferences": owners[:1]}}).metadata.controller_uid == ""


@pytest.mark.parametrize("message", ["", "Traceback", "[" * 100_000, '"words"', "\udcff"])
def test_a_termination_message_that_is_no_object_says_nothing(message: str) -> None:
    assert TerminationMessage.parse_json(message) == TerminationMessage.parse({})


def test_what_a_fetch_reported_is_read_whole() -> None:
    message = fetched()["state"]["terminated"]["message"]
    model = TerminationMessage.parse_json(message).model
    assert model is not None
    assert model.model_dump(by_alias=True, exclude_unset=True, mode="json") == REPORT
