"""Decides whether a Job reads how large a model is before its first pods: where each pod fetches for itself, nothing
else would tell before they have to ask for memory and storage.
"""

from __future__ import annotations

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.manifests.configmap import build_file_config_map
from embedserve_operator.manifests.job import build_job, build_job_name
from embedserve_operator.manifests.pod_inputs import PodInputs
from embedserve_operator.manifests.runtime_config import build_plan_yaml
from embedserve_operator.plan.jobs import DesiredJob, JobStep, build_plan_status, plan_job_step
from embedserve_operator.plan.preparation import NOTHING_TO_PREPARE, Preparation
from embedserve_operator.plan.revision import collect_model_inputs, compute_revision
from embedserve_operator.settings import RenderSettings
from embedserve_operator.state.jobs import JobState
from embedserve_operator.state.observed import ObservedState


def plan_size_job(
    observed: ObservedState, spec: EmbeddingServiceSpec, settings: RenderSettings
) -> Preparation:
    """Return how far the size of the model is known that the spec declares, and the Job that reads it.

    Pods that exist already are never held back by it, nor are any once the Job has been given up.
    """
    if not settings.plans_models or spec.suspend:
        return NOTHING_TO_PREPARE
    resource, revision = observed.resource, compute_revision(spec)
    config = build_file_config_map(resource, build_plan_yaml(spec, settings))
    pods = PodInputs(resource, spec, settings, revision, config["metadata"]["name"])
    name = build_job_name(resource, None, "plan", {"model": collect_model_inputs(spec)})
    desired = DesiredJob(build_job(pods, "plan", name), "plan")
    step = plan_job_step(desired, observed.find_job(name), resource.status.plan, resource)
    if observed.find_deployment(revision) is not None:
        plan = None if step.phase == "Running" else build_plan_status(step, observed)
        return Preparation(jobs_to_delete=_find_leftovers(observed), plan=plan)
    is_over = _is_over(step)
    return Preparation(
        is_ready=is_over or observed.claims is None,
        children=() if is_over else (config,),
        jobs_to_create=(step.desired.manifest,) if step.must_create else (),
        jobs_to_delete=() if step.job_to_delete is None else (step.job_to_delete,),
        failure=None if is_over else step.failure,
        activity="" if is_over else step.activity,
        plan=build_plan_status(step, observed),
    )


def _is_over(step: JobStep) -> bool:
    """Return whether pods need not wait: there is a plan, or there will be none, and the pods will say why not."""
    return step.phase == "Succeeded" or (step.failure is not None and not step.failure.is_transient)


def _find_leftovers(observed: ObservedState) -> tuple[JobState, ...]:
    """Return the Jobs of this resource that are of no use: pods have started without them, or a sidecar keeps them."""
    return tuple(
        job
        for job in observed.jobs
        if job.owner == observed.resource.uid and (job.phase == "Running" or job.is_lingering)
    )
