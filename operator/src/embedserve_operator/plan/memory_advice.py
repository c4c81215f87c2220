"""Says which memory limit would do, where a container was killed since it needed more than it had."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from embedserve_operator.api.quantities import parse_quantity
from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.manifests.containers import CONVERT, FETCH, PLAN, RUNTIME
from embedserve_operator.manifests.memory import format_mib, grow
from embedserve_operator.manifests.resources import choose_memory
from embedserve_operator.settings import RenderSettings
from embedserve_operator.state.failures import Failure
from embedserve_operator.state.jobs import JobTask
from embedserve_operator.state.models import ModelSize
from embedserve_operator.state.observed import ObservedState
from embedserve_operator.state.pods import PodState

_TASKS: Mapping[str, JobTask | None] = {RUNTIME: None, PLAN: PLAN, FETCH: FETCH, CONVERT: CONVERT}
"""The task of each of our containers; None stands for serving."""


def add_memory_advice(
    observed: ObservedState, spec: EmbeddingServiceSpec, settings: RenderSettings
) -> ObservedState:
    """Return the observed state whose failures for want of memory say what to set."""

    def advise(failure: Failure | None, size: ModelSize | None) -> Failure | None:
        if failure is None or failure.shortage is None:
            return failure
        name, limit = failure.shortage.container, failure.shortage.limit
        planned = None
        if name in _TASKS:
            need = choose_memory(_TASKS[name], spec, settings, size)
            planned = need.limit or need.request
        return replace(failure, message=f"{failure.message}; {_format_advice(limit, planned)}")

    fetched = observed.resource.status.fetch
    size_of_job = None
    if fetched is not None and fetched.size_bytes is not None:
        size_of_job = ModelSize(fetched.size_bytes, fetched.memory)
    return replace(
        observed,
        pods=tuple(
            replace(pod, failure=advise(pod.failure, _find_size(observed, pod))) for pod in observed.pods
        ),
        jobs=tuple(replace(job, failure=advise(job.failure, size_of_job)) for job in observed.jobs),
    )


def _find_size(observed: ObservedState, pod: PodState) -> ModelSize | None:
    """Return how large the model of a pod is: as it reports, or as its Deployment was made for."""
    deployment = observed.find_deployment(pod.revision)
    of_deployment = None if deployment is None else deployment.model_size
    return (None if pod.report is None else pod.report.size) or of_deployment


def _format_advice(limit: str | int | None, planned: int | None) -> str:
    """Name the limit to set: what was planned where the container had less, or else half as much again as it had."""
    failed = None if limit is None else parse_quantity(limit)
    if planned is not None and (failed is None or failed < planned):
        return f"set spec.resources.limits.memory to {format_mib(planned)}"
    if failed is None:
        return "raise spec.resources.limits.memory"
    return f"set spec.resources.limits.memory to {format_mib(grow(failed))}"
