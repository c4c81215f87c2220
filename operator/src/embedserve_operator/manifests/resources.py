"""Builds the `resources` of containers: those of the user, completed by what the hardware class has and by what the
model needs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from embedserve_operator.api.quantities import parse_quantity
from embedserve_operator.api.types import EmbeddingServiceSpec, Resources
from embedserve_operator.kube.objects import Manifest
from embedserve_operator.manifests.memory import (
    FETCH_BYTES,
    TORCH_BYTES,
    compute_conversion_memory,
    compute_planned_memory,
    compute_unplanned_memory,
    format_mib,
)
from embedserve_operator.manifests.placement import find_accelerators, find_hardware_class, runs_torch
from embedserve_operator.manifests.pod_inputs import PodInputs
from embedserve_operator.manifests.storage import compute_pod_storage, has_unbounded_volume
from embedserve_operator.settings import RenderSettings
from embedserve_operator.state.jobs import JobTask
from embedserve_operator.state.models import ModelSize

_DEFAULT_CPUS = 2
"""The CPUs that a pod is planned for where nobody says how many it has."""


@dataclass(frozen=True, slots=True)
class Amount:
    """The amounts of a resource that a container requests and may take; None where that is not known."""

    request: int | None = None
    limit: int | None = None


_UNKNOWN = Amount()


def build_serving_resources(pods: PodInputs) -> Manifest:
    """Return the resources of the container that serves."""
    accelerators = find_accelerators(pods.spec, pods.settings)
    amounts = {
        "memory": choose_memory(None, pods.spec, pods.settings, pods.model_size),
        "ephemeral-storage": _choose_storage(pods, None),
    }
    return _build_resources(
        pods.spec.resources, _count_requested_cpus(pods, serves=True), amounts, accelerators
    )


def build_task_resources(pods: PodInputs, task: JobTask, *, is_init: bool) -> Manifest:
    """Return the resources of a container that fetches or converts. `is_init` says that its pod serves afterwards, and
    so has the volumes for that.
    """
    amounts = {
        "memory": choose_memory(task, pods.spec, pods.settings, pods.model_size),
        "ephemeral-storage": _choose_storage(pods, None if is_init else task),
    }
    return _build_resources(pods.spec.resources, _count_requested_cpus(pods, serves=False), amounts, None)


def _build_resources(
    user_resources: Resources | None,
    cpus: int | None,
    amounts: Mapping[str, Amount],
    accelerators: tuple[str, int] | None,
) -> Manifest:
    """Merge the resources of the spec with defaults for what it does not mention: CPUs, `amounts`, accelerators."""
    given = user_resources.as_wire() if user_resources is not None else {}
    limits: dict[str, Any] = dict(given.get("limits", {}))
    requests: dict[str, Any] = dict(given.get("requests", {}))
    named = limits.keys() | requests.keys()
    if cpus is not None and "cpu" not in named:
        requests["cpu"] = cpus
    for name, amount in amounts.items():
        if name in named:
            continue
        if amount.limit is not None:
            limits[name] = format_mib(amount.limit)
        if amount.request is not None:
            requests[name] = format_mib(amount.request)
    if accelerators is not None:
        name, count = accelerators
        limits[name] = requests[name] = count
    resources = {key: value for key, value in (("limits", limits), ("requests", requests)) if value}
    return {"resources": resources} if resources else {}


def _count_requested_cpus(pods: PodInputs, *, serves: bool) -> int | None:
    """Return the CPUs that the hardware class requests for a container; None where it requests none.

    A class with accelerators has CPUs for each of them: for the container that serves, and only if the spec takes the
    class's own accelerators, since a slice under another resource name needs fewer.
    """
    cpus, accelerators = (
        find_hardware_class(pods.spec, pods.settings).cpus,
        find_accelerators(pods.spec, pods.settings),
    )
    if cpus is None or accelerators is None:
        return cpus
    is_whole = serves and pods.spec.hardware.resource_name is None
    return cpus * accelerators[1] if is_whole else None


def choose_memory(
    task: JobTask | None, spec: EmbeddingServiceSpec, settings: RenderSettings, size: ModelSize | None
) -> Amount:
    """Return the memory of a container where the user gives none. `task` is None for the one that serves; `size` is
    that of its model.
    """
    hardware = find_hardware_class(spec, settings)
    has_accelerators = hardware.resource_name is not None
    if task in ("plan", "fetch"):
        # Weights are read piece by piece, if at all, so that their number does not matter.
        amount = FETCH_BYTES + (TORCH_BYTES if has_accelerators else 0)
        return Amount(amount, amount)
    if size is None or (task is None and has_accelerators):
        # On accelerators the model says nothing of the memory of the host.
        return _UNKNOWN
    if size.memory is None or runs_torch(spec, hardware):
        # The size of files says nothing of the longest text.
        return Amount(request=compute_unplanned_memory(size.file_bytes, spec))
    planned = (
        compute_planned_memory(size.memory, spec, _count_cpus(spec, hardware.cpus))
        if task is None
        else compute_conversion_memory(size.memory)
    )
    return Amount(planned, planned)


def _choose_storage(pods: PodInputs, task: JobTask | None) -> Amount:
    """Return the ephemeral storage of a pod. All of it counts against the limit, so there is none where a volume of the
    user has no size.
    """
    amount = compute_pod_storage(pods, task)
    return Amount(amount, None if has_unbounded_volume(pods.spec) else amount)


def _count_cpus(spec: EmbeddingServiceSpec, of_class: int | None) -> int:
    """Return the CPUs that the batches of a pod are planned for; two where nobody says how many there are."""
    resources = spec.resources
    for amounts in (resources.limits, resources.requests) if resources is not None else ():
        cpus = parse_quantity((amounts or {}).get("cpu"))
        if cpus is not None:
            return max(1, math.ceil(cpus))
    return of_class or _DEFAULT_CPUS
