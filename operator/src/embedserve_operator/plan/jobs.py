"""Decides what happens to a Job: it is to be started, is running, has succeeded, or was given up.

A Job is named after its inputs, and its result is kept in the status. A Job that has ended and was cleared
away is not run again, unless its result has vanished from the volume. A Job that was given up is tried
again when the resource changes, or when something that its pods are made from changes (a token, an image).

Several services that share a claim want Jobs of the same names. The service whose pass comes first makes
the Job and owns it; the others use its result. If the owner goes, a running Job goes with it, and another
service that wants the Job makes it again.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from embedserve_operator.api.status import (
    ConversionStatus,
    FetchStatus,
    JobStatus,
    PlanStatus,
    VariantStatus,
)
from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.kube.objects import Manifest
from embedserve_operator.manifests.job import read_job_template_hash
from embedserve_operator.state.failures import Failure
from embedserve_operator.state.jobs import JobPhase, JobState, JobTask
from embedserve_operator.state.models import ModelReport
from embedserve_operator.state.observed import ObservedState
from embedserve_operator.state.resource import Resource

_MAX_START_SECONDS = 10
"""A Job that has had no pod for so long has none for a reason: its controller makes one within moments."""
UNCONVERTED_PRECISION = "float32"
"""The precision that can always be served."""
_ACTIVITIES: dict[JobTask, str] = {
    "plan": "reading how large the model is",
    "fetch": "fetching the model",
    "convert": "converting the model",
}


@dataclass(frozen=True, slots=True)
class DesiredJob:
    """A Job that should have succeeded before pods serve."""

    manifest: Manifest
    task: JobTask
    stale_since: str = ""
    """A success from before this moment does not count; empty where every one does."""

    @property
    def name(self) -> str:
        """Name of the Job."""
        return str(self.manifest["metadata"]["name"])

    @property
    def template_hash(self) -> str:
        """Hash of the pod template."""
        return read_job_template_hash(self.manifest)


@dataclass(frozen=True, slots=True)
class JobStep:
    """The progress of one Job, and what is to be done about it."""

    desired: DesiredJob
    phase: JobPhase
    must_create: bool = False
    job_to_delete: JobState | None = None
    """A Job that is in the way of another attempt."""
    failure: Failure | None = None

    @property
    def activity(self) -> str:
        """Return a human-readable description of what the Job is doing."""
        return f"Job {self.desired.name} is {_ACTIVITIES[self.desired.task]}"


def find_unstarted_jobs(observed: ObservedState) -> tuple[JobState, ...]:
    """Return the Jobs that should have had a pod by now."""
    return tuple(
        job
        for job in observed.jobs
        if job.unstarted_since is not None and observed.now - job.unstarted_since >= _MAX_START_SECONDS
    )


def list_start_deadlines(observed: ObservedState) -> tuple[int, ...]:
    """Return when Jobs that have had no pod yet should have had one, in seconds since 1970."""
    ends = [
        job.unstarted_since + _MAX_START_SECONDS for job in observed.jobs if job.unstarted_since is not None
    ]
    return tuple(end for end in ends if end > observed.now)


def plan_job_step(
    desired: DesiredJob, job: JobState | None, before: JobStatus | None, resource: Resource
) -> JobStep:
    """Decide what to do about a wanted Job.

    `job` is the Job of its name, `before` the published result of the last Job of its task.
    """
    published = _find_valid_result(desired, before)
    if job is None:
        return _plan_missing_job(desired, published, resource)
    if job.phase == "Succeeded":
        return _plan_succeeded_job(desired, job, published, resource)
    if job.phase == "Failed":
        return _plan_failed_job(desired, job, published, resource)
    # A running Job of another service is left to that service.
    outdated = job.template_hash != desired.template_hash and job.owner == resource.uid
    return JobStep(desired, "Running", job_to_delete=job if outdated else None, failure=job.failure)


def _find_valid_result(desired: DesiredJob, before: JobStatus | None) -> JobStatus | None:
    """Return the published result where it is about the desired Job and not stale; None otherwise."""
    if before is None or before.job != desired.name:
        return None
    is_stale = before.state == "Succeeded" and (before.finished_at or "") < desired.stale_since
    return None if is_stale else before


def _plan_succeeded_job(
    desired: DesiredJob, job: JobState, published: JobStatus | None, resource: Resource
) -> JobStep:
    """Return the step of a Job that has succeeded: it runs again where its result is stale, or was lost."""
    is_stale = published is None and job.finished_at < desired.stale_since
    has_result = job.report is not None or job.conversion is not None
    is_published = published is not None and published.state == "Succeeded"
    if is_stale or not (has_result or is_published):
        return JobStep(desired, "Running", job_to_delete=job)
    # A sidecar keeps the Job from ending: once its result is published, nothing is lost with it.
    must_end = job.is_lingering and is_published and job.owner == resource.uid
    return JobStep(desired, "Succeeded", job_to_delete=job if must_end else None)


def _plan_failed_job(
    desired: DesiredJob, job: JobState, published: JobStatus | None, resource: Resource
) -> JobStep:
    template = desired.template_hash
    if published is not None and published.state == "Failed" and _was_tried(published, template, resource):
        return JobStep(desired, "Failed", failure=_read_stored_failure(published))
    if job.template_hash == template and (published is None or published.generation == resource.generation):
        return JobStep(desired, "Failed", failure=_build_final_failure(job))
    return JobStep(desired, "Running", job_to_delete=job)


def _plan_missing_job(desired: DesiredJob, published: JobStatus | None, resource: Resource) -> JobStep:
    if published is not None and published.state == "Succeeded":
        return JobStep(desired, "Succeeded")
    if (
        published is not None
        and published.state == "Failed"
        and _was_tried(published, desired.template_hash, resource)
    ):
        return JobStep(desired, "Failed", failure=_read_stored_failure(published))
    return JobStep(desired, "Running", must_create=True)


def _was_tried(published: JobStatus, template: str, resource: Resource) -> bool:
    return (published.template, published.generation) == (template, resource.generation)


def _read_stored_failure(published: JobStatus) -> Failure:
    return Failure(
        published.reason or "JobFailed",
        published.message or f"Job {published.job} failed",
        is_transient=False,
    )


def _build_final_failure(job: JobState) -> Failure:
    cause = job.failure or Failure("JobFailed", f"Job {job.name} failed", is_transient=False)
    message = (
        f"{cause.message}; Job {job.name} will not run again: once that is corrected, change the resource to retry, "
        "for example the value of spec.model.refresh"
    )
    return Failure(cause.reason, message, is_transient=False)


def build_plan_status(step: JobStep, observed: ObservedState) -> PlanStatus:
    """Return what to publish about a plan."""
    job, before = observed.find_job(step.desired.name), observed.resource.status.plan
    report = job.report if job is not None else None
    common_fields = _build_common_fields(step, job, before, observed.resource)
    if step.phase != "Succeeded":
        return PlanStatus(**common_fields)
    if report is None:
        return before or PlanStatus(**common_fields)
    return PlanStatus(**common_fields, size_bytes=report.size_bytes, memory=report.memory)


def build_fetch_status(step: JobStep, observed: ObservedState) -> FetchStatus:
    """Return what to publish about a fetch."""
    job, before = observed.find_job(step.desired.name), observed.resource.status.fetch
    report = job.report if job is not None else None
    common_fields = _build_common_fields(step, job, before, observed.resource)
    if step.phase != "Succeeded":
        return FetchStatus(**common_fields)
    if report is None:
        return before or FetchStatus(**common_fields)
    return FetchStatus(
        **common_fields,
        source=report.source,
        revision=report.revision,
        digest=report.digest,
        size_bytes=report.size_bytes,
        dimensions=report.dimensions,
        vector_space=report.vector_space,
        former_vector_space=report.former_vector_space,
        licence=report.licence,
        outputs=report.outputs,
        onnx_outputs=report.onnx_outputs,
        guesses_pooling=report.guesses_pooling or None,
        adapter_tasks=report.adapter_tasks or None,
        memory=report.memory,
        needs_export=report.needs_export or None,
    )


def build_conversion_status(
    step: JobStep, observed: ObservedState, spec: EmbeddingServiceSpec, *, exported: bool
) -> ConversionStatus:
    """Return what to publish about a conversion.

    `exported` says that torch exports the model, since it belongs to no family.
    """
    job, before = observed.find_job(step.desired.name), observed.resource.status.conversion
    report = job.conversion if job is not None else None
    common_fields = _build_common_fields(step, job, before, observed.resource)
    if step.phase != "Succeeded":
        return ConversionStatus(**common_fields)
    if report is not None:
        status = ConversionStatus(
            **common_fields,
            artifact=report.artifact,
            vector_space=report.vector_space,
            former_vector_space=report.former_vector_space,
            dimensions=report.dimensions,
            outputs=report.outputs,
            guesses_pooling=report.guesses_pooling or None,
            chosen=report.chosen,
            variants=tuple(VariantStatus.model_validate(asdict(variant)) for variant in report.variants),
        )
    else:
        status = before or ConversionStatus(**common_fields)
    return status.model_copy(update={"fallback": _describe_fallback(status, spec, exported=exported)})


def _describe_fallback(status: ConversionStatus, spec: EmbeddingServiceSpec, *, exported: bool) -> str | None:
    """Describe what is served instead of what was tried or is named in the spec, and why."""
    published = {variant.precision for variant in status.variants if variant.published}
    missing = {
        variant.precision: variant.reason or "not good enough"
        for variant in status.variants
        if not variant.published
    }
    model_precision, onnx_precision = (
        spec.model.precision,
        spec.onnx.precision if spec.onnx is not None else "auto",
    )
    for precision in {onnx_precision, model_precision} - {"auto", UNCONVERTED_PRECISION} - published:
        missing.setdefault(
            precision,
            "torch exports float32 alone"
            if exported
            else f"it was not tried on this processor by onnx.precision: {onnx_precision}",
        )
    if not missing:
        return None
    served = (
        model_precision
        if model_precision in published
        else (status.chosen or UNCONVERTED_PRECISION)
        if model_precision == "auto"
        else UNCONVERTED_PRECISION
    )
    return f"{served} is served, not " + "; not ".join(f"{name}: {missing[name]}" for name in sorted(missing))


def _build_common_fields(
    step: JobStep, job: JobState | None, before: JobStatus | None, resource: Resource
) -> dict[str, Any]:
    failed = step.failure if step.phase == "Failed" else None
    finished = job.finished_at if job is not None and step.phase == "Succeeded" else ""
    if before is not None and (before.job, before.state) == (step.desired.name, step.phase):
        # Another service may have run a Job of that name again, which changes nothing for this one.
        finished = before.finished_at or finished
    return {
        "finished_at": finished or None,
        "job": step.desired.name,
        "state": step.phase,
        "template": step.desired.template_hash,
        "generation": resource.generation,
        "reason": failed.reason if failed is not None else None,
        "message": failed.message if failed is not None else None,
    }


def build_model_report(
    fetched: FetchStatus | None, converted: ConversionStatus | None = None
) -> ModelReport | None:
    """Return what a successful fetch found out; None before.

    For an exported model, the export adds what the fetch could not know.
    """
    if fetched is None or fetched.state != "Succeeded":
        return None
    status = converted if fetched.needs_export and converted is not None else fetched
    return ModelReport(
        source=fetched.source or "",
        revision=fetched.revision,
        digest=fetched.digest,
        size_bytes=fetched.size_bytes,
        dimensions=status.dimensions,
        vector_space=status.vector_space,
        former_vector_space=status.former_vector_space,
        licence=fetched.licence,
        outputs=status.outputs,
        onnx_outputs=fetched.onnx_outputs,
        guesses_pooling=status.guesses_pooling is True,
        adapter_tasks=fetched.adapter_tasks or (),
        memory=fetched.memory,
        needs_export=fetched.needs_export is True,
    )
