"""Decides what has to happen to the volume of models before pods can serve from it: a claim, a
fetch, a conversion.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from embedserve_operator.api.status import ConversionStatus, FetchStatus, PlanStatus
from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.kube.objects import Manifest
from embedserve_operator.manifests.configmap import build_file_config_map
from embedserve_operator.manifests.job import build_job, build_job_name
from embedserve_operator.manifests.network_policy import build_fetch_policy
from embedserve_operator.manifests.placement import find_image
from embedserve_operator.manifests.pod_inputs import PodInputs
from embedserve_operator.manifests.runtime_config import build_convert_yaml, build_fetch_yaml
from embedserve_operator.manifests.volume import ModelVolume, build_claim
from embedserve_operator.plan.export import choose_conversion_settings, find_export_refusal, needs_export
from embedserve_operator.plan.jobs import (
    DesiredJob,
    JobStep,
    build_conversion_status,
    build_fetch_status,
    build_model_report,
    plan_job_step,
)
from embedserve_operator.plan.model_volume import (
    choose_claim_size,
    choose_model_volume,
    find_outputs_refusal,
    find_used_claim,
    is_conversion_required,
    is_converted,
)
from embedserve_operator.plan.revision import collect_model_inputs, compute_revision
from embedserve_operator.settings import RenderSettings
from embedserve_operator.state.failures import Failure
from embedserve_operator.state.jobs import JobState, JobTask
from embedserve_operator.state.models import ModelReport, ModelSize
from embedserve_operator.state.observed import ObservedState

NOT_STORED = "ModelNotStored"
"""The reason that the runtime gives when a volume does not hold the model, or not all of it."""


@dataclass(frozen=True, slots=True)
class Preparation:
    """The progress of preparing the volume of models."""

    volume: ModelVolume | None = None
    """The volume of models; None where each pod fetches for itself, and nothing is prepared."""
    is_ready: bool = True
    """Indicates that pods can serve from the volume."""
    children: tuple[Manifest, ...] = ()
    jobs_to_create: tuple[Manifest, ...] = ()
    """The Jobs that do not exist yet."""
    jobs_to_delete: tuple[JobState, ...] = ()
    failure: Failure | None = None
    activity: str = ""
    """Human-readable description of what is going on; empty when nothing is."""
    plan: PlanStatus | None = None
    fetch: FetchStatus | None = None
    conversion: ConversionStatus | None = None
    claim_failure: Failure | None = None
    """The reason why pods that start from now on cannot mount the claim, while those that run go on."""
    must_clear: bool = False
    """Indicates that no pod of the service may mount the volume before the next step, since it takes only one pod."""

    @property
    def can_serve(self) -> bool:
        """Return whether the pods may exist."""
        return self.is_ready and not self.must_clear

    @property
    def report(self) -> ModelReport | None:
        """Return what the Jobs found out about the model that the spec asks for."""
        return build_model_report(self.fetch, self.conversion)

    @property
    def planned_size(self) -> ModelSize | None:
        """Return the size of the model as a Job has planned it."""
        if self.plan is None or self.plan.state != "Succeeded" or self.plan.size_bytes is None:
            return None
        return ModelSize(self.plan.size_bytes, self.plan.memory)


NOTHING_TO_PREPARE = Preparation()


@dataclass(frozen=True, slots=True)
class _VolumeInputs:
    """The facts that the steps on a volume of models are planned from."""

    observed: ObservedState
    spec: EmbeddingServiceSpec
    settings: RenderSettings
    volume: ModelVolume
    model_size: ModelSize | None = None
    """The size of the model, once it was fetched."""

    @property
    def is_cluster_known(self) -> bool:
        """Return whether claims are observed; otherwise everything that will be made is shown at once."""
        return self.observed.claims is not None

    @property
    def claim_identity(self) -> str:
        """Return the UID of the claim, or its name as long as it does not exist."""
        claim = find_used_claim(self.observed)
        return claim.uid if claim is not None else self.volume.claim


@dataclass(frozen=True, slots=True)
class _PlannedJob:
    """A step with the configuration of its Job."""

    step: JobStep
    config: Manifest


def plan_preparation(
    observed: ObservedState, spec: EmbeddingServiceSpec, settings: RenderSettings
) -> Preparation:
    """Return how far the volume has been prepared, and what to do next."""
    volume = choose_model_volume(observed, spec)
    if volume is None:
        return NOTHING_TO_PREPARE
    preparation = replace(_plan_on_volume(_VolumeInputs(observed, spec, settings, volume)), volume=volume)
    claim = find_used_claim(observed)
    if claim is not None and claim.is_being_deleted:
        return _release_claim(preparation, observed, volume)
    return preparation


def _release_claim(preparation: Preparation, observed: ObservedState, volume: ModelVolume) -> Preparation:
    """Return the preparation for a claim that somebody has deleted: no Job is started on it, and those that are there
    go, since even the pod of a finished one keeps the claim from going.
    """
    uid = observed.resource.uid
    after = "then it is created and filled again" if volume.is_own else "then create it again"
    message = (
        f"PersistentVolumeClaim {volume.claim} is being deleted: running pods keep it, new pods wait until it "
        f"is gone; {after}"
    )
    return replace(
        preparation,
        jobs_to_create=(),
        jobs_to_delete=tuple(job for job in observed.jobs if job.phase != "Running" or job.owner == uid),
        claim_failure=Failure("VolumeClaimTerminating", message, is_transient=True),
    )


def _plan_on_volume(inputs: _VolumeInputs) -> Preparation:
    """Return the preparation of a volume: the claim, the fetch, the conversion."""
    published, children = inputs.observed.resource.status, _build_cache_children(inputs)
    if inputs.volume.is_filled or inputs.spec.suspend:
        return Preparation(children=children, fetch=published.fetch, conversion=published.conversion)
    if inputs.is_cluster_known and find_used_claim(inputs.observed) is None:
        return _plan_without_claim(children, inputs.volume)
    return _limit_to_one_pod(_plan_jobs(inputs, children), inputs)


def _plan_jobs(inputs: _VolumeInputs, children: tuple[Manifest, ...]) -> Preparation:
    """Return the preparation by Jobs: the fetch, and the conversion once the fetch has said what the model is."""
    observed, spec = inputs.observed, inputs.spec
    fetching = _plan_fetch(inputs)
    fetch = build_fetch_status(fetching.step, observed)
    report = build_model_report(fetch)
    refusal = _find_conversion_refusal(inputs, report)
    jobs, conversion = [fetching], None
    is_fetched = fetch.state == "Succeeded" or not inputs.is_cluster_known
    if is_converted(spec, inputs.settings) and refusal is None and is_fetched:
        converting = _plan_conversion(inputs, fetch, report)
        conversion = build_conversion_status(converting.step, observed, spec, exported=needs_export(report))
        jobs.append(converting)
    requires_conversion = is_conversion_required(spec) or needs_export(report)
    preparation = _combine_jobs(observed, jobs, children, requires_conversion=requires_conversion)
    if refusal is not None:
        preparation = replace(preparation, is_ready=False, failure=refusal)
    is_ready = preparation.is_ready or not inputs.is_cluster_known
    return replace(preparation, is_ready=is_ready, fetch=fetch, conversion=conversion)


def _find_conversion_refusal(inputs: _VolumeInputs, report: ModelReport | None) -> Failure | None:
    """Return why the fetched model cannot be converted; None when it can be, or need not be."""
    spec, settings = inputs.spec, inputs.settings
    if not is_converted(spec, settings):
        return None
    return find_outputs_refusal(spec, report) or find_export_refusal(spec, settings, report)


def _build_cache_children(inputs: _VolumeInputs) -> tuple[Manifest, ...]:
    """Return the children that exist as long as the cache does."""
    observed, spec, volume = inputs.observed, inputs.spec, inputs.volume
    children = []
    if spec.cache is not None and spec.cache.volume is not None:
        size = choose_claim_size(observed, spec.cache.volume)
        children.append(build_claim(observed.resource, spec.cache.volume, volume, size))
    policy = None if volume.is_filled else build_fetch_policy(observed.resource, spec, inputs.settings)
    return (*children, *([policy] if policy is not None else []))


def _plan_without_claim(children: tuple[Manifest, ...], volume: ModelVolume) -> Preparation:
    if volume.is_own:
        return Preparation(
            is_ready=False, children=children, activity=f"claim {volume.claim} is being created"
        )
    message = f"there is no PersistentVolumeClaim {volume.claim}: create it, or correct spec.cache.claimName"
    return Preparation(
        is_ready=False, children=children, failure=Failure("VolumeClaimMissing", message, is_transient=True)
    )


def _plan_fetch(inputs: _VolumeInputs) -> _PlannedJob:
    """Plan the fetch. What shapes the vectors is part of its identity, since it reports the vector space."""
    spec, settings = inputs.spec, inputs.settings
    return _plan_job(
        inputs,
        "fetch",
        identity={"claim": inputs.claim_identity, "model": collect_model_inputs(spec)},
        content=build_fetch_yaml(spec, settings, converts=is_converted(spec, settings)),
        stale_since=_find_loss_time(inputs.observed, compute_revision(spec)),
    )


def _find_loss_time(observed: ObservedState, revision: str) -> str:
    """Return when somebody last found the model on the volume incomplete; empty when nobody did."""
    failures = [
        *(pod.failure for pod in observed.list_pods(revision)),
        *(
            job.failure
            for job in observed.jobs
            if job.task == "convert" and job.owner == observed.resource.uid
        ),
    ]
    return max(
        (failure.ended_at for failure in failures if failure is not None and failure.reason == NOT_STORED),
        default="",
    )


def _plan_conversion(inputs: _VolumeInputs, fetch: FetchStatus, report: ModelReport | None) -> _PlannedJob:
    """Plan the conversion, on the class of nodes that will serve, with the image that serves or exports.

    A model that was fetched again is converted again.
    """
    spec = inputs.spec
    inputs = replace(
        inputs,
        settings=choose_conversion_settings(spec, inputs.settings, report),
        model_size=None if report is None else report.size,
    )
    identity = {
        "claim": inputs.claim_identity,
        "fetched": fetch.digest or fetch.revision,
        "model": collect_model_inputs(spec),
        "onnx": spec.onnx.as_wire() if spec.onnx is not None else {},
        "class": spec.hardware.class_,
        "image": find_image(spec, inputs.settings).reference,
    }
    return _plan_job(
        inputs,
        "convert",
        identity=identity,
        content=build_convert_yaml(spec, inputs.settings),
        stale_since=fetch.finished_at or "",
    )


def _plan_job(
    inputs: _VolumeInputs,
    task: JobTask,
    *,
    identity: object,
    content: str,
    stale_since: str,
) -> _PlannedJob:
    """Plan a Job. Its name is the hash of `identity`; `content` is its configuration file."""
    observed, spec, volume = inputs.observed, inputs.spec, inputs.volume
    resource, status = observed.resource, observed.resource.status
    config = build_file_config_map(resource, content)
    pods = PodInputs(
        resource=resource,
        spec=spec,
        settings=inputs.settings,
        revision=compute_revision(spec),
        config=config["metadata"]["name"],
        volume=volume,
        model_size=inputs.model_size,
    )
    manifest = build_job(pods, task, build_job_name(resource, volume, task, identity))
    desired = DesiredJob(manifest, task, stale_since)
    before = status.fetch if task == "fetch" else status.conversion
    step = plan_job_step(desired, observed.find_job(desired.name), before, resource)
    return _PlannedJob(step, config)


def _combine_jobs(
    observed: ObservedState,
    planned: list[_PlannedJob],
    children: tuple[Manifest, ...],
    *,
    requires_conversion: bool,
) -> Preparation:
    """Return the preparation that follows from all Jobs.

    With `requires_conversion`, nothing is served without the conversion.
    """
    steps = [job.step for job in planned]
    open_steps = [job for job in planned if not _is_over(job.step, requires_conversion=requires_conversion)]
    current = open_steps[0].step if open_steps else None
    return Preparation(
        is_ready=not open_steps,
        children=(*children, *(job.config for job in open_steps)),
        jobs_to_create=tuple(step.desired.manifest for step in steps if step.must_create),
        jobs_to_delete=(
            *(step.job_to_delete for step in steps if step.job_to_delete is not None),
            *_find_unwanted_jobs(observed, tuple(step.desired.name for step in steps)),
        ),
        failure=current.failure if current is not None else None,
        activity=current.activity if current is not None else "",
    )


def _is_over(step: JobStep, *, requires_conversion: bool) -> bool:
    """Return whether pods need not wait for a step: a model that could not be converted is served as it is."""
    if step.phase == "Succeeded":
        return True
    is_permanent = step.failure is not None and not step.failure.is_transient
    return step.desired.task == "convert" and is_permanent and not requires_conversion


def _find_unwanted_jobs(observed: ObservedState, desired_names: tuple[str, ...]) -> tuple[JobState, ...]:
    """Return the running Jobs of this resource that nobody asks for any more.

    What they have fetched is kept.
    """
    return tuple(
        job
        for job in observed.jobs
        if job.owner == observed.resource.uid and job.phase == "Running" and job.name not in desired_names
    )


def _limit_to_one_pod(preparation: Preparation, inputs: _VolumeInputs) -> Preparation:
    """Return the preparation for a volume that takes one pod: what serves goes before a Job or another
    revision comes.
    """
    if not inputs.volume.is_single_pod:
        return preparation
    deployments, revision = inputs.observed.deployments, compute_revision(inputs.spec)
    has_other_revisions = any(deployment.revision != revision for deployment in deployments)
    must_clear = not preparation.is_ready or has_other_revisions
    is_occupied = bool(deployments) or bool(inputs.observed.pods)
    return replace(
        preparation,
        must_clear=must_clear,
        jobs_to_create=() if must_clear and is_occupied else preparation.jobs_to_create,
    )
