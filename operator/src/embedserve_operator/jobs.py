"""Reading a Job and its pods: how far it is, why it fails, and what it said in the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from embedserve_operator.pods import failure_of, fetcher_of, model_report, mounted_config, result_of
from embedserve_operator.specs.metadata import JOB_NAME, TASK_LABEL, TEMPLATE_HASH, controller_uid
from embedserve_operator.wire import Received, dig, mappings, number, strings, text
from embedserve_operator.world import (
    ClaimFacts,
    ConversionReport,
    Failure,
    JobFacts,
    JobState,
    JobTask,
    VariantReport,
)


def read_jobs(jobs: Iterable[Received], pods: Iterable[Received]) -> tuple[JobFacts, ...]:
    """The facts of Jobs, by name; `pods` are those of all of them."""
    by_job: dict[str, list[Received]] = {}
    for pod in pods:
        by_job.setdefault(text(pod, "metadata", "labels", JOB_NAME), []).append(pod)
    # One that is being deleted is in nobody's way any more.
    there = [job for job in jobs if dig(job, "metadata", "deletionTimestamp") is None]
    found = [_job(job, by_job.get(text(job, "metadata", "name"), [])) for job in there]
    return tuple(sorted(found, key=lambda job: job.name))


def read_claim(claim: Received) -> ClaimFacts:
    """The facts of a PersistentVolumeClaim."""
    modes = dig(claim, "spec", "accessModes")
    return ClaimFacts(
        name=text(claim, "metadata", "name"),
        uid=text(claim, "metadata", "uid"),
        access_modes=tuple(str(mode) for mode in modes) if isinstance(modes, list) else (),
        storage_class=text(claim, "spec", "storageClassName") or None,
    )


def _job(job: Received, pods: Sequence[Received]) -> JobFacts:
    task: JobTask = "convert" if text(job, "metadata", "labels", TASK_LABEL) == "convert" else "fetch"
    youngest = max(pods, key=lambda pod: text(pod, "metadata", "creationTimestamp"), default=None)
    state, why = _state(job)
    failure = failure_of(youngest) if youngest is not None and state != "Succeeded" else None
    results = [found for pod in pods if (found := result_of(pod, task)) is not None]
    return JobFacts(
        name=text(job, "metadata", "name"),
        uid=text(job, "metadata", "uid"),
        task=task,
        owner=controller_uid(job),
        template=text(job, "metadata", "annotations", TEMPLATE_HASH),
        config=mounted_config(dig(job, "spec", "template", "spec")),
        state=state,
        failure=failure or why,
        finished=text(job, "status", "completionTime"),
        report=next((found for one in results if (found := model_report(one)) is not None), None),
        conversion=next((found for one in results if (found := conversion_report(one)) is not None), None),
        fetcher=next((found for pod in pods if (found := fetcher_of(pod)) is not None), None),
    )


def _state(job: Received) -> tuple[JobState, Failure | None]:
    for condition in mappings(job, "status", "conditions"):
        if condition.get("status") != "True":
            continue
        if condition.get("type") == "Complete":
            return "Succeeded", None
        if condition.get("type") == "Failed":
            words = f"Job {text(job, 'metadata', 'name')}: {text(condition, 'message')}"
            return "Failed", Failure("JobFailed", words, heals=False)
    return "Running", None


def conversion_report(result: Any) -> ConversionReport | None:
    """What a conversion said at its end; None when it said nothing of the kind."""
    found = dig(result, "conversion")
    if found is None:
        return None
    return ConversionReport(
        artifact=text(found, "artifact") or None,
        vector_space=text(found, "vectorSpace") or None,
        chosen=text(found, "chosen") or None,
        variants=tuple(_variant(variant) for variant in mappings(found, "variants")),
        dimensions=number(found, "dimensions") or None,
        outputs=strings(found, "outputs"),
    )


def _variant(found: Received) -> VariantReport:
    return VariantReport(
        precision=text(found, "precision"),
        published=found.get("published") is True,
        reason=text(found, "reason") or None,
        mean_cosine=_real(found, "meanCosine"),
        min_cosine=_real(found, "minCosine"),
        max_difference=_real(found, "maxDifference"),
        rank_agreement=_real(found, "rankAgreement"),
        tokens_per_second=_real(found, "tokensPerSecond"),
    )


def _real(found: Received, name: str) -> float | None:
    value = found.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
