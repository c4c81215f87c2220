"""This module reads a Job and its pods: its progress, why it fails, and what it reported at its end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from embedserve_operator.kube.objects import Received, dig, mappings, number, strings, text
from embedserve_operator.manifests.metadata import JOB_NAME, TASK_LABEL, TEMPLATE_HASH, read_controller_uid
from embedserve_operator.observe.pods import (
    find_failure,
    parse_model_report,
    read_fetching_pod,
    read_mounted_config_map,
    read_result,
)
from embedserve_operator.state.failures import Failure
from embedserve_operator.state.jobs import (
    ClaimState,
    ConversionReport,
    JobPhase,
    JobState,
    JobTask,
    VariantReport,
)


def read_jobs(jobs: Iterable[Received], pods: Iterable[Received]) -> tuple[JobState, ...]:
    """Return the state of the Jobs, ordered by name. `pods` are the pods of all of them."""
    by_job: dict[str, list[Received]] = {}
    for pod in pods:
        by_job.setdefault(text(pod, "metadata", "labels", JOB_NAME), []).append(pod)
    # A Job that is being deleted no longer counts.
    there = [job for job in jobs if dig(job, "metadata", "deletionTimestamp") is None]
    found = [_read_job(job, by_job.get(text(job, "metadata", "name"), [])) for job in there]
    return tuple(sorted(found, key=lambda job: job.name))


def read_claim(claim: Received) -> ClaimState:
    """Return the state of a PersistentVolumeClaim."""
    modes = dig(claim, "spec", "accessModes")
    return ClaimState(
        name=text(claim, "metadata", "name"),
        uid=text(claim, "metadata", "uid"),
        access_modes=tuple(str(mode) for mode in modes) if isinstance(modes, list) else (),
        storage_class=text(claim, "spec", "storageClassName") or None,
    )


def _read_job(job: Received, pods: Sequence[Received]) -> JobState:
    task: JobTask = "convert" if text(job, "metadata", "labels", TASK_LABEL) == "convert" else "fetch"
    youngest = max(pods, key=lambda pod: text(pod, "metadata", "creationTimestamp"), default=None)
    state, why = _read_phase(job)
    failure = find_failure(youngest) if youngest is not None and state != "Succeeded" else None
    results = [found for pod in pods if (found := read_result(pod, task)) is not None]
    return JobState(
        name=text(job, "metadata", "name"),
        uid=text(job, "metadata", "uid"),
        task=task,
        owner=read_controller_uid(job),
        template_hash=text(job, "metadata", "annotations", TEMPLATE_HASH),
        config_map=read_mounted_config_map(dig(job, "spec", "template", "spec")),
        phase=state,
        failure=failure or why,
        finished_at=text(job, "status", "completionTime"),
        report=next((found for one in results if (found := parse_model_report(one)) is not None), None),
        conversion=next(
            (found for one in results if (found := parse_conversion_report(one)) is not None), None
        ),
        fetching_pod=next((found for pod in pods if (found := read_fetching_pod(pod)) is not None), None),
    )


def _read_phase(job: Received) -> tuple[JobPhase, Failure | None]:
    for condition in mappings(job, "status", "conditions"):
        if condition.get("status") != "True":
            continue
        if condition.get("type") == "Complete":
            return "Succeeded", None
        if condition.get("type") == "Failed":
            message = f"Job {text(job, 'metadata', 'name')}: {text(condition, 'message')}"
            return "Failed", Failure("JobFailed", message, is_transient=False)
    return "Running", None


def parse_conversion_report(result: Any) -> ConversionReport | None:
    """Return what a conversion reported at its end, or None when it reported nothing of the kind."""
    found = dig(result, "conversion")
    if found is None:
        return None
    return ConversionReport(
        artifact=text(found, "artifact") or None,
        vector_space=text(found, "vectorSpace") or None,
        chosen=text(found, "chosen") or None,
        variants=tuple(_parse_variant(variant) for variant in mappings(found, "variants")),
        dimensions=number(found, "dimensions") or None,
        outputs=strings(found, "outputs"),
    )


def _parse_variant(found: Received) -> VariantReport:
    return VariantReport(
        precision=text(found, "precision"),
        published=found.get("published") is True,
        reason=text(found, "reason") or None,
        mean_cosine=_parse_float(found, "meanCosine"),
        min_cosine=_parse_float(found, "minCosine"),
        max_difference=_parse_float(found, "maxDifference"),
        rank_agreement=_parse_float(found, "rankAgreement"),
        tokens_per_second=_parse_float(found, "tokensPerSecond"),
    )


def _parse_float(found: Received, name: str) -> float | None:
    value = found.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
