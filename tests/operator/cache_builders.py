"""Services with a cache, their claim and their Jobs, as the API server would send them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from embedserve_operator.kube.objects import Manifest
from tests.operator.builders import REPO, REPORT, Cluster, hub_spec, resource

VOLUME = {"volume": {"size": "20Gi"}}
CONVERSION = {
    "artifact": "onnx-1234",
    "vectorSpace": REPORT["vectorSpace"],
    "chosen": "int8",
    "variants": [
        {"precision": "float32", "published": True, "tokensPerSecond": 1000.0},
        {
            "precision": "int8",
            "published": True,
            "meanCosine": 0.9991,
            "minCosine": 0.995,
            "maxDifference": 0.02,
        },
    ],
}


def cached(cache: Mapping[str, Any] = VOLUME, **more: Any) -> dict[str, Any]:
    """A spec with a cache."""
    return hub_spec(REPO, cache=dict(cache), **more)


def claim(*modes: str, name: str = "models", uid: str = "claim-1") -> Manifest:
    """A claim that somebody made."""
    return {
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "search", "uid": uid},
        "spec": {"accessModes": list(modes)},
    }


def with_claim(spec: Mapping[str, Any], *claims: Manifest) -> Cluster:
    """A new service; a claim of its own is there once the plan was carried out."""
    return replace(Cluster(resource(spec)), claims=claims)


def running(cluster: Cluster) -> Manifest:
    """The Job that runs."""
    (running_job,) = [job for job in cluster.jobs if "status" not in job]
    return running_job


def succeeded(cluster: Cluster, result: Mapping[str, Any] | None = None, *, finished: str = "") -> Cluster:
    """After the Job that runs ended well; by default with what a Job of its task says."""
    job = running(cluster)
    task = job["metadata"]["labels"]["app.kubernetes.io/component"]
    result_reported = result or ({"model": REPORT} if task == "fetch" else {"conversion": CONVERSION})
    return ended(cluster, job, "Complete", {"exitCode": 0, "message": json.dumps(result_reported)}, finished)


def failed(cluster: Cluster, reason: str = "SourceUnavailable", *, retryable: bool = True) -> Cluster:
    """After the Job that runs was given up."""
    job = running(cluster)
    message = json.dumps({"reason": reason, "message": "the hub does not answer", "retryable": retryable})
    return ended(cluster, job, "Failed", {"exitCode": 1, "message": message})


def retrying(cluster: Cluster, reason: str, *, retryable: bool) -> Cluster:
    """While the Job that runs goes on, after a pod of it has failed."""
    job = running(cluster)
    message = json.dumps({"reason": reason, "message": "words", "retryable": retryable})
    pod = _pod(job, {"exitCode": 1, "message": message})
    return replace(cluster, job_pods=(*cluster.job_pods, pod))


def ended(
    cluster: Cluster, job: Manifest, condition: str, state: Mapping[str, Any], finished: str = ""
) -> Cluster:
    """After a Job has ended; each by default a minute after the one before."""
    minute = sum("status" in existing for existing in cluster.jobs)
    conditions = [{"type": condition, "status": "True", "message": "the Job's words"}]
    ended_job = {
        **job,
        "status": {"conditions": conditions, "completionTime": finished or f"2026-01-02T12:{minute:02}:00Z"},
    }
    jobs = tuple(ended_job if existing is job else existing for existing in cluster.jobs)
    return replace(cluster, jobs=jobs, job_pods=(*cluster.job_pods, _pod(job, state)))


def cleared(cluster: Cluster) -> Cluster:
    """After the Jobs that have ended went, with their pods."""
    return replace(cluster, jobs=tuple(job for job in cluster.jobs if "status" not in job), job_pods=())


def _pod(job: Manifest, state: Mapping[str, Any]) -> Manifest:
    name = job["metadata"]["name"]
    labels = {**job["spec"]["template"]["metadata"]["labels"], "batch.kubernetes.io/job-name": name}
    container = job["spec"]["template"]["spec"]["containers"][0]["name"]
    phase = "Failed" if state["exitCode"] else "Succeeded"
    return {
        "kind": "Pod",
        "metadata": {"name": f"{name}-x", "namespace": "search", "labels": labels},
        "spec": job["spec"]["template"]["spec"],
        "status": {
            "phase": phase,
            "containerStatuses": [{"name": container, "state": {"terminated": dict(state)}}],
        },
    }


def started(cluster: Cluster) -> Cluster:
    """After the next passes have made what can be made, and said so."""
    for _ in range(3):
        cluster = cluster.applied().published()
    return cluster


def serving(spec: Mapping[str, Any], *claims: Manifest) -> Cluster:
    """A service that runs from its cache."""
    cluster = started(succeeded(started(with_claim(spec, *claims))))
    if any("status" not in job for job in cluster.jobs):
        cluster = started(succeeded(cluster))
    return cluster.rolled_out().applied().published()
