"""No pod ever waits for a volume that another pod holds, whatever its access modes, all through a service's life."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from embedserve_operator.kube.objects import Manifest
from embedserve_operator.manifests.metadata import CLAIM_LABEL
from tests.operator.builders import OTHER_REPO, Cluster, hub_spec
from tests.operator.cache_builders import cached, claim, serving, started, succeeded, with_claim

READ_WRITE_ONCE, READ_WRITE_ONCE_POD, READ_WRITE_MANY, READ_ONLY_MANY = (
    "ReadWriteOnce",
    "ReadWriteOncePod",
    "ReadWriteMany",
    "ReadOnlyMany",
)


def own(*modes: str) -> dict[str, Any]:
    return {"volume": {"size": "1Gi", "accessModes": list(modes)}}


SHARED = {"claimName": "models"}
FILLED = {**SHARED, "readOnly": True}
CASES: dict[str, tuple[dict[str, Any], tuple[str, ...], dict[str, Any], str]] = {
    "one node": (own(READ_WRITE_ONCE), (), {}, "node"),
    "one node, several pods": (own(READ_WRITE_ONCE), (), {"replicas": 4}, "node"),
    "one node, an autoscaler": (own(READ_WRITE_ONCE), (), {"autoscaling": {"maxReplicas": 8}}, "node"),
    "one node, accelerators": (
        own(READ_WRITE_ONCE),
        (),
        {"replicas": 2, "hardware": {"class": "hopper"}},
        "node",
    ),
    "one node, an affinity of the user's": (
        own(READ_WRITE_ONCE),
        (),
        {
            "pod": {
                "affinity": {
                    "podAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]
                    }
                }
            }
        },
        "node",
    ),
    "one pod": (own(READ_WRITE_ONCE_POD), (), {}, "pod"),
    "one pod, converted": (own(READ_WRITE_ONCE_POD), (), {"onnx": {}}, "pod"),
    "one pod, suspended": (own(READ_WRITE_ONCE_POD), (), {"suspend": True}, "pod"),
    "many nodes": (own(READ_WRITE_MANY), (), {"replicas": 4}, "free"),
    "many nodes or one": (own(READ_WRITE_ONCE, READ_WRITE_MANY), (), {"replicas": 4}, "free"),
    "a shared claim of one node": (SHARED, (READ_WRITE_ONCE,), {"replicas": 2}, "node"),
    "a shared claim of one pod": (SHARED, (READ_WRITE_ONCE_POD,), {}, "pod"),
    "a shared claim of many nodes": (SHARED, (READ_WRITE_MANY,), {"replicas": 2}, "free"),
    "a shared claim for readers as well": (
        SHARED,
        (READ_WRITE_ONCE, READ_ONLY_MANY),
        {"replicas": 2},
        "node",
    ),
    "a filled claim of one node": (FILLED, (READ_WRITE_ONCE,), {"replicas": 2}, "node"),
    "a filled claim for readers": (FILLED, (READ_ONLY_MANY,), {"replicas": 2}, "free"),
}
"""Cache, modes of a claim that is there before, other fields, how the pods are kept."""


def life(spec: dict[str, Any], *claims: Manifest) -> Iterator[Cluster]:
    """A service at all its points: made, fetching, serving, with another model, updated."""
    new = with_claim(spec, *claims)
    yield new
    cluster = started(new)
    yield cluster
    while any("status" not in job for job in cluster.jobs):
        cluster = started(succeeded(cluster))
        yield cluster
    cluster = cluster.rolled_out().applied().published()
    yield cluster
    updated = started(cluster.changed({**spec, "servedModelName": "other"}))
    yield updated
    for change in (
        {**spec, "model": {**spec["model"], "refresh": "again"}},
        {**hub_spec(OTHER_REPO), "cache": spec["cache"]},
    ):
        cluster = cluster.changed(change)
        for _ in range(4):
            cluster = cluster.applied()
            yield cluster
            cluster = cluster.published()
        without_old_pods = replace(
            cluster, pods=tuple(p for p in cluster.pods if _has_deployment(cluster, p))
        )
        yield (cluster := started(without_old_pods))
        while any("status" not in job for job in cluster.jobs):
            cluster = started(succeeded(cluster))
            yield cluster
        cluster = cluster.rolled_out().applied().published()
        yield cluster


def _has_deployment(cluster: Cluster, pod: Manifest) -> bool:
    revision = pod["metadata"]["labels"]["embedserve.dev/revision"]
    return any(revision in name for name in cluster.names("Deployment"))


def mounting(cluster: Cluster) -> list[Manifest]:
    """Templates of the pods that may be there: of Deployments, and of Jobs that have not ended."""
    deployments = [child for child in cluster.children if child["kind"] == "Deployment"]
    return [
        workload["spec"]["template"]
        for workload in (*deployments, *(job for job in cluster.jobs if "status" not in job))
    ]


def is_kept_together(template: Manifest) -> bool:
    """Return whether a pod goes only where the other pods of its claim are."""
    mark = template["metadata"]["labels"][CLAIM_LABEL]
    affinity = template["spec"]["affinity"].get("podAffinity", {})
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", [])
    return {
        "labelSelector": {"matchLabels": {CLAIM_LABEL: mark}},
        "topologyKey": "kubernetes.io/hostname",
    } in terms


def most_pods(cluster: Cluster) -> int:
    """Pods that may mount the volume at the same time."""
    count = len([job for job in cluster.jobs if "status" not in job])
    count += len([pod for pod in cluster.pods if not _has_deployment(cluster, pod)])
    for child in cluster.children:
        if child["kind"] == "Deployment":
            surge = child["spec"]["strategy"]["rollingUpdate"]["maxSurge"]
            replicas = child["spec"].get("replicas", 1)
            count += replicas + (surge if replicas else 0)
    return count


@pytest.mark.parametrize(("cache", "modes", "fields", "togetherness"), CASES.values(), ids=list(CASES))
def test_pods_never_wait_for_each_other(
    cache: dict[str, Any], modes: tuple[str, ...], fields: dict[str, Any], togetherness: str
) -> None:
    claims = (claim(*modes),) if modes else ()
    served = 0
    for cluster in life(cached(cache, **fields), *claims):
        assert "Stalled" not in cluster.conditions()
        templates = mounting(cluster)
        served += len(cluster.names("Deployment"))
        assert all(is_kept_together(template) == (togetherness != "free") for template in templates)
        budgets = cluster.names("PodDisruptionBudget")
        if togetherness != "free":
            assert budgets == [], "a drain would wait for a pod that can come up nowhere else"
        if togetherness == "pod":
            assert most_pods(cluster) <= 1
    assert served, "the service comes up"


@pytest.mark.parametrize(
    ("spec", "modes", "reason", "advice"),
    [
        pytest.param(
            cached(own(READ_WRITE_ONCE_POD), replicas=2),
            (),
            "VolumeForOnePod",
            "or one replica",
            id="two pods",
        ),
        pytest.param(
            cached(own(READ_WRITE_ONCE_POD), autoscaling={"maxReplicas": 2}),
            (),
            "VolumeForOnePod",
            "ReadWriteMany",
            id="an autoscaler",
        ),
        pytest.param(
            cached(SHARED, replicas=2),
            (READ_WRITE_ONCE_POD,),
            "VolumeForOnePod",
            "ReadWriteOnce",
            id="a claim for one pod",
        ),
        pytest.param(
            cached(SHARED),
            (READ_ONLY_MANY,),
            "VolumeNotWritable",
            "set spec.cache.readOnly",
            id="a claim for readers",
        ),
        pytest.param(
            cached(SHARED, onnx={"convert": "Always"}, engine="torch"),
            (READ_WRITE_MANY,),
            "ConversionNotUsed",
            "engine: onnx",
            id="conversion for another engine",
        ),
        pytest.param(
            cached(SHARED, onnx={"outputs": ["logits"]}, hardware={"class": "hopper"}),
            (READ_WRITE_MANY,),
            "ConversionNotUsed",
            "convert: Always, or outputs",
            id="ONNX files of another engine",
        ),
    ],
)
def test_what_no_pods_could_work_with_is_refused(
    spec: dict[str, Any], modes: tuple[str, ...], reason: str, advice: str
) -> None:
    cluster = with_claim(spec, *((claim(*modes),) if modes else ()))
    stalled = cluster.conditions()["Stalled"]
    assert stalled.reason == reason
    assert advice in stalled.message
    assert cluster.plan().children == ()


@pytest.mark.parametrize(
    ("volume", "words"),
    [
        ({"accessModes": [READ_WRITE_MANY]}, "exists with accessModes ReadWriteOnce, not ReadWriteMany"),
        ({"storageClassName": "fast"}, "exists with storageClassName None, not fast"),
    ],
)
def test_a_claim_is_never_replaced_and_what_serves_goes_on(volume: dict[str, Any], words: str) -> None:
    changed = serving(cached(own(READ_WRITE_ONCE))).changed(cached({"volume": {"size": "1Gi", **volume}}))
    conditions = changed.conditions()
    assert (conditions["Stalled"].reason, conditions["Ready"].status) == ("VolumeClaimConflict", "True")
    assert words in conditions["Stalled"].message
    assert changed.plan().prune == ()


def test_a_fetch_runs_where_the_pods_may_run() -> None:
    cluster = started(with_claim(cached(hardware={"class": "hopper"}, pod={"nodeSelector": {"pool": "a"}})))
    template = mounting(cluster)[0]
    served = mounting(started(succeeded(cluster)))[-1]
    for name in ("nodeSelector", "tolerations", "affinity"):
        assert template["spec"][name] == served["spec"][name]
    assert "nvidia.com/gpu" not in str(template["spec"]["containers"]), "a device would be idle meanwhile"
    assert "runtimeClassName" not in template["spec"]


def test_the_jobs_pods_are_none_of_the_services() -> None:
    cluster = serving(cached(replicas=2))
    templates = [job["spec"]["template"] for job in cluster.jobs]
    selectors = [child["spec"]["selector"] for child in cluster.children if child["kind"] == "Service"]
    for template in templates:
        for selector in selectors:
            assert not selector.items() <= template["metadata"]["labels"].items()


def test_a_held_model_waits_for_the_volume_too() -> None:
    spec = cached(own(READ_WRITE_ONCE_POD))
    cluster = started(with_claim(spec, claim(READ_WRITE_ONCE_POD)))
    while any("status" not in job for job in cluster.jobs):
        cluster = started(succeeded(cluster))
    cluster = cluster.rolled_out().applied().published()
    before = cluster.names("Deployment")
    held_cluster = cluster.changed(
        {**hub_spec(OTHER_REPO), "cache": spec["cache"], "rollout": {"hold": True}}
    )
    for _ in range(3):
        held_cluster = held_cluster.applied().published()
    assert held_cluster.names("Deployment") == before, "what serves stays"
    assert [job["metadata"]["name"] for job in held_cluster.jobs] == [
        job["metadata"]["name"] for job in cluster.jobs
    ]
    assert held_cluster.conditions()["Ready"].reason == "Held"
