"""Where a Job is on its way: to be started, running, done, or given up.

A Job is named by what it works on, and what came of it is kept in the status: one that has ended and was cleared away
is not run again, unless what it made is gone from the volume. One that was given up is tried again when the resource
changes, or what its pods are made from (a token, an image).

Several services that share a claim want Jobs of the same names. Whose pass comes first makes the Job and owns it, the
others take its result. If the owner goes, so does a Job under way, and another service that wants it makes it anew.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from embedserve_operator.api.status import ConversionStatus, FetchStatus, JobStatus, VariantStatus
from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.specs.job import job_template
from embedserve_operator.wire import Manifest
from embedserve_operator.world import (
    Failure,
    JobFacts,
    JobState,
    JobTask,
    ModelReport,
    Resource,
)

PLAIN = "float32"
"""What is always there to be served."""
_WORDS: dict[JobTask, str] = {"fetch": "fetching", "convert": "converting"}


@dataclass(frozen=True, slots=True)
class Step:
    """One Job's place on the way to a volume that is as it should be."""

    manifest: Manifest
    task: JobTask
    state: JobState
    start: bool = False
    remove: JobFacts | None = None
    """A Job that stands in the way of another try."""
    failure: Failure | None = None

    @property
    def name(self) -> str:
        """Name of the Job."""
        return str(self.manifest["metadata"]["name"])

    @property
    def words(self) -> str:
        """What is going on, for people."""
        return f"Job {self.name} is {_WORDS[self.task]} the model"


def step(
    manifest: Manifest,
    task: JobTask,
    job: JobFacts | None,
    before: JobStatus | None,
    resource: Resource,
    *,
    stale_since: str = "",
) -> Step:
    """What to do about a wanted Job. `before` is what was published of the last one of its task; a success from before
    `stale_since` counts for nothing."""
    known = before if before is not None and before.job == manifest["metadata"]["name"] else None
    if known is not None and known.state == "Succeeded" and (known.finished_at or "") < stale_since:
        known = None
    if job is None:
        return _without(manifest, task, known, resource)
    if job.state == "Succeeded":
        if known is None and job.finished < stale_since:
            return Step(manifest, task, "Running", remove=job)
        has_result = job.report is not None or job.conversion is not None
        if has_result or (known is not None and known.state == "Succeeded"):
            return Step(manifest, task, "Succeeded")
        return Step(manifest, task, "Running", remove=job)
    if job.state == "Failed":
        return _failed(manifest, task, job, known, resource)
    # Another service's Job is its own business as long as it runs.
    outdated = job.template != job_template(manifest) and job.owner == resource.uid
    return Step(manifest, task, "Running", remove=job if outdated else None, failure=job.failure)


def _failed(
    manifest: Manifest, task: JobTask, job: JobFacts, known: JobStatus | None, resource: Resource
) -> Step:
    template = job_template(manifest)
    if known is not None and known.state == "Failed" and _was_tried(known, template, resource):
        return Step(manifest, task, "Failed", failure=_stored(known))
    if job.template == template and (known is None or known.generation == resource.generation):
        return Step(manifest, task, "Failed", failure=_given_up(job))
    return Step(manifest, task, "Running", remove=job)


def _without(manifest: Manifest, task: JobTask, known: JobStatus | None, resource: Resource) -> Step:
    if known is not None and known.state == "Succeeded":
        return Step(manifest, task, "Succeeded")
    if known is not None and known.state == "Failed" and _was_tried(known, job_template(manifest), resource):
        return Step(manifest, task, "Failed", failure=_stored(known))
    return Step(manifest, task, "Running", start=True)


def _was_tried(known: JobStatus, template: str, resource: Resource) -> bool:
    return (known.template, known.generation) == (template, resource.generation)


def _stored(known: JobStatus) -> Failure:
    return Failure(known.reason or "JobFailed", known.message or f"Job {known.job} failed", heals=False)


def _given_up(job: JobFacts) -> Failure:
    cause = job.failure or Failure("JobFailed", f"Job {job.name} failed", heals=False)
    words = (
        f"{cause.message}; Job {job.name} was given up: when that is put right, change the resource to try again, for "
        "example spec.model.refresh to another word"
    )
    return Failure(cause.reason, words, heals=False)


def fetch_status(
    found: Step, job: JobFacts | None, before: FetchStatus | None, resource: Resource
) -> FetchStatus:
    """What to publish of a fetch."""
    report = job.report if job is not None else None
    common = _common(found, job, before, resource)
    if found.state != "Succeeded":
        return FetchStatus(**common)
    if report is None:
        return before or FetchStatus(**common)
    return FetchStatus(
        **common,
        source=report.source,
        revision=report.revision,
        digest=report.digest,
        size_bytes=report.size_bytes,
        dimensions=report.dimensions,
        vector_space=report.vector_space,
        licence=report.licence,
        outputs=report.outputs,
        onnx_outputs=report.onnx_outputs,
        foreign=report.foreign or None,
    )


def conversion_status(
    found: Step,
    job: JobFacts | None,
    before: ConversionStatus | None,
    resource: Resource,
    spec: EmbeddingServiceSpec,
    *,
    exported: bool,
) -> ConversionStatus:
    """What to publish of a conversion. exported: by torch, as the model is of no family."""
    report = job.conversion if job is not None else None
    common = _common(found, job, before, resource)
    if found.state != "Succeeded":
        return ConversionStatus(**common)
    if report is not None:
        made = ConversionStatus(
            **common,
            artifact=report.artifact,
            vector_space=report.vector_space,
            dimensions=report.dimensions,
            outputs=report.outputs,
            chosen=report.chosen,
            variants=tuple(VariantStatus.model_validate(asdict(variant)) for variant in report.variants),
        )
    else:
        made = before or ConversionStatus(**common)
    return made.model_copy(update={"fallback": _fallback(made, spec, exported=exported)})


def _fallback(made: ConversionStatus, spec: EmbeddingServiceSpec, *, exported: bool) -> str | None:
    """What is served instead of what was tried or is named in the spec, and why."""
    published = {one.precision for one in made.variants if one.published}
    missing = {one.precision: one.reason or "not good enough" for one in made.variants if not one.published}
    wanted, asked = spec.model.precision, spec.onnx.precision if spec.onnx is not None else "auto"
    for named in {asked, wanted} - {"auto", PLAIN} - published:
        missing.setdefault(
            named,
            "torch exports float32 alone"
            if exported
            else f"it was not tried on this processor by onnx.precision: {asked}",
        )
    if not missing:
        return None
    served = wanted if wanted in published else (made.chosen or PLAIN) if wanted == "auto" else PLAIN
    return f"{served} is served, not " + "; not ".join(f"{name}: {missing[name]}" for name in sorted(missing))


def _common(
    found: Step, job: JobFacts | None, before: JobStatus | None, resource: Resource
) -> dict[str, Any]:
    failed = found.failure if found.state == "Failed" else None
    finished = job.finished if job is not None and found.state == "Succeeded" else ""
    if before is not None and (before.job, before.state) == (found.name, found.state):
        # Another service may have run a Job of that name again, which is no news to this one.
        finished = before.finished_at or finished
    return {
        "finished_at": finished or None,
        "job": found.name,
        "state": found.state,
        "template": job_template(found.manifest),
        "generation": resource.generation,
        "reason": failed.reason if failed is not None else None,
        "message": failed.message if failed is not None else None,
    }


def model_report(
    fetched: FetchStatus | None, converted: ConversionStatus | None = None
) -> ModelReport | None:
    """What a fetch that succeeded found out; None before. What it could not know of a model that is exported, the
    export says."""
    if fetched is None or fetched.state != "Succeeded":
        return None
    said = converted if fetched.foreign and converted is not None else fetched
    return ModelReport(
        source=fetched.source or "",
        revision=fetched.revision,
        digest=fetched.digest,
        size_bytes=fetched.size_bytes,
        dimensions=said.dimensions,
        vector_space=said.vector_space,
        licence=fetched.licence,
        outputs=said.outputs,
        onnx_outputs=fetched.onnx_outputs,
        foreign=fetched.foreign is True,
    )
