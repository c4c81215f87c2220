"""Pods that a node has taken and does not start: Kubernetes tells why in events only, the service says what it can."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from embedserve_operator.api.times import format_moment
from embedserve_operator.cache.objects import ObjectCache
from embedserve_operator.kube.references import ObjectKey
from embedserve_operator.kube.views.pods import Pod
from embedserve_operator.observe.pods import find_failure
from tests.operator.builders import NOW, Cluster, hub_spec, pod, resource
from tests.operator.cache_builders import cached, started, with_claim

IMAGE = {"model": {"source": {"image": {"reference": "registry.example/minilm:1"}}}}
NO_SOURCE = 'failed to generate spec: failed to mkdir "": mkdir : no such file or directory'
UNMOUNTED = [
    {"type": "PodScheduled", "status": "True", "lastTransitionTime": format_moment(NOW)},
    {"type": "PodReadyToStartContainers", "status": "False", "lastTransitionTime": format_moment(NOW)},
]


def mounting(spec: dict[str, Any]) -> Cluster:
    """A service whose pod has a node since NOW, and neither volumes nor network."""
    return Cluster(resource(spec)).applied().started(conditions=UNMOUNTED)


@pytest.mark.parametrize(
    ("spec", "reason", "words"),
    [
        pytest.param(IMAGE, "ImageVolumesMissing", "feature gate ImageVolume", id="a model in an image"),
        pytest.param(hub_spec(), "PodNotStarted", "kubectl describe pod", id="any other"),
    ],
)
def test_a_pod_that_its_node_does_not_start_is_told_after_two_minutes(
    spec: dict[str, Any], reason: str, words: str
) -> None:
    cluster = mounting(spec)
    assert cluster.conditions()["Reconciling"].reason == "Progressing", "most are there in seconds"
    assert cluster.plan().wake_after == 120
    late = replace(cluster, now=NOW + 120)
    assert late.conditions()["Reconciling"].reason == reason
    assert words in late.conditions()["Reconciling"].message
    assert late.plan().wake_after is None


def test_a_job_whose_pod_does_not_start_is_told_as_well() -> None:
    cluster = started(with_claim(cached()))
    (job,) = cluster.jobs
    received = pod("", "", "docs-config", name="docs-fetch-pod")
    received["metadata"]["labels"]["batch.kubernetes.io/job-name"] = job["metadata"]["name"]
    received["status"] = {"phase": "Pending", "conditions": UNMOUNTED}
    cluster = replace(cluster, job_pods=(received,))
    assert (cluster.conditions()["Reconciling"].reason, cluster.plan().wake_after) == ("PreparingModel", 120)
    assert replace(cluster, now=NOW + 120).conditions()["Reconciling"].reason == "PodNotStarted"


def test_what_is_kept_of_a_pod_says_as_much_as_the_pod() -> None:
    received = pod("rev", "template", "docs-config")
    received["metadata"]["resourceVersion"] = "1"
    received["spec"] |= {"nodeName": "node-a"}
    received["spec"]["volumes"].append({"name": "source", "image": {"reference": "r:1"}})
    received["status"]["conditions"] = UNMOUNTED
    store = ObjectCache()
    store.put("Pod", received)
    (cached,) = store.list_pods(ObjectKey("search", "docs"))
    failure = find_failure(cached)
    assert failure == find_failure(Pod.parse(received))
    assert failure is not None
    assert (failure.reason, "node node-a" in failure.message) == ("ImageVolumesMissing", True)


@pytest.mark.parametrize(
    ("volume", "words", "reason"),
    [
        pytest.param(
            {"image": {"reference": "r:1"}}, NO_SOURCE, "ImageVolumesMissing", id="no image volumes"
        ),
        pytest.param(
            {"image": {"reference": "r:1"}}, "no room", "CreateContainerError", id="another trouble"
        ),
        pytest.param({"emptyDir": {}}, NO_SOURCE, "CreateContainerError", id="no image"),
    ],
)
def test_a_container_runtime_that_knows_no_image_volumes_is_named(
    volume: dict[str, Any], words: str, reason: str
) -> None:
    received = pod("rev", "template", "docs-config")
    received["spec"]["volumes"].append({"name": "source", **volume})
    waiting = {"waiting": {"reason": "CreateContainerError", "message": words}}
    received["status"]["initContainerStatuses"] = [{"name": "fetch", "state": waiting}]
    failure = find_failure(Pod.parse(received))
    assert failure is not None
    assert (failure.reason, words in failure.message) == (reason, True)
