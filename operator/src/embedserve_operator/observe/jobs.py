"""Reads a Job and its pods: its progress, why it fails, and what it reported at its end."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import get_args

from embedserve_operator.api.times import parse_moment
from embedserve_operator.kube.views.pods import Pod
from embedserve_operator.kube.views.workloads import Job, PersistentVolumeClaim
from embedserve_operator.manifests.metadata import JOB_NAME, TASK_LABEL, TEMPLATE_HASH
from embedserve_operator.observe.pods import (
    find_failure,
    read_fetching_pod,
    read_lingering_end,
    read_mounted_config_map,
    read_result,
)
from embedserve_operator.observe.reports import read_conversion_result, read_model_report
from embedserve_operator.state.failures import Failure, build_creation_failure
from embedserve_operator.state.jobs import ClaimState, JobPhase, JobState, JobTask


def read_jobs(
    jobs: Iterable[Job], pods: Iterable[Pod], creation_problems: Mapping[str, str]
) -> tuple[JobState, ...]:
    """Return the state of the Jobs, ordered by name.

    `pods` are the pods of all of them. `creation_problems` says why pods of a Job cannot be created, by its UID.
    """
    by_job: dict[str, list[Pod]] = {}
    for pod in pods:
        by_job.setdefault(pod.metadata.labels.get(JOB_NAME, ""), []).append(pod)
    # A Job that is being deleted no longer counts.
    existing = [job for job in jobs if not job.metadata.is_being_deleted]
    states = [
        _read_job(job, by_job.get(job.metadata.name, []), creation_problems.get(job.metadata.uid, ""))
        for job in existing
    ]
    return tuple(sorted(states, key=lambda job: job.name))


def read_claim(claim: PersistentVolumeClaim) -> ClaimState:
    """Return the state of a PersistentVolumeClaim."""
    return ClaimState(
        name=claim.metadata.name,
        uid=claim.metadata.uid,
        access_modes=claim.spec.access_modes,
        storage_class=claim.spec.storage_class_name or None,
        size=claim.spec.resources.requests.get("storage"),
        is_being_deleted=claim.metadata.is_being_deleted,
    )


def _read_job(job: Job, pods: Sequence[Pod], creation_problem: str) -> JobState:
    metadata = job.metadata
    task = _read_task(metadata.labels.get(TASK_LABEL, ""))
    youngest = max(pods, key=lambda pod: pod.metadata.creation_timestamp, default=None)
    phase, phase_failure = _read_phase(job)
    lingering_end = next(
        (ended for pod in pods if (ended := read_lingering_end(pod, task)) is not None), None
    )
    is_lingering = phase == "Running" and lingering_end is not None
    if is_lingering:
        phase = "Succeeded"
    failure = find_failure(youngest) if youngest is not None and phase != "Succeeded" else None
    has_pods = bool(pods) or job.status.active > 0 or job.status.failed > 0
    is_unstarted = phase == "Running" and not has_pods
    if is_unstarted and creation_problem:
        # Each attempt is about a pod of another name, which would make news of the same words.
        problem = re.sub(rf'"{re.escape(metadata.name)}-[a-z0-9]+"', f'"{metadata.name}"', creation_problem)
        phase_failure = build_creation_failure(f"Job {metadata.name}: {problem}")
    results = [read_result(pod, task) for pod in pods]
    model = next((result.model for result in results if result.model is not None), None)
    conversion = next((result.conversion for result in results if result.conversion is not None), None)
    return JobState(
        name=metadata.name,
        uid=metadata.uid,
        task=task,
        owner=metadata.controller_uid,
        template_hash=metadata.annotations.get(TEMPLATE_HASH, ""),
        config_map=read_mounted_config_map(job.spec.template.spec),
        phase=phase,
        failure=failure or phase_failure,
        finished_at=job.status.completion_time or (lingering_end or ""),
        is_lingering=is_lingering,
        report=None if model is None else read_model_report(model),
        conversion=None if conversion is None else read_conversion_result(conversion),
        fetching_pod=next(
            (fetching for pod in pods if (fetching := read_fetching_pod(pod)) is not None), None
        ),
        unstarted_since=parse_moment(metadata.creation_timestamp) if is_unstarted else None,
    )


def _read_task(label: str) -> JobTask:
    tasks: tuple[JobTask, ...] = get_args(JobTask)
    return next((task for task in tasks if task == label), "fetch")


def _read_phase(job: Job) -> tuple[JobPhase, Failure | None]:
    for condition in job.status.conditions:
        if condition.is_true and condition.type == "Complete":
            return "Succeeded", None
        if condition.is_true and condition.type == "Failed":
            message = f"Job {job.metadata.name}: {condition.message}"
            return "Failed", Failure("JobFailed", message, is_transient=False)
    return "Running", None
