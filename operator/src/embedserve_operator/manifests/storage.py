"""Computes how much of a node's disk pods need: for models that they keep in a volume of their own, for temporary files
and for logs.
"""

from __future__ import annotations

import math

from embedserve_operator.api.pods import EmptyDirVolume
from embedserve_operator.api.quantities import MIB, parse_quantity
from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.manifests.memory import round_up
from embedserve_operator.manifests.placement import find_hardware_class, runs_torch
from embedserve_operator.manifests.pod_inputs import PodInputs
from embedserve_operator.state.jobs import JobTask

_SMALL_FILES_BYTES = 256 * MIB
"""Bytes for what libraries write into the folder for temporary files."""
_LOG_BYTES = 128 * MIB
"""Bytes for logs, of which a kubelet keeps 50 MiB for each container as it comes, and for what else a container writes
outside of volumes.
"""
_KERNEL_BYTES = 2048 * MIB
"""Bytes for the kernels that are compiled for an accelerator."""
_ARCHIVE_SHARE = 3
"""Bytes that an archive takes for each byte of the model: the archive, what is in it, and the model."""
_UNPLANNED_SHARE = 2
"""Bytes of weights in float32 for each byte of a file, where nothing else is known."""


def compute_models_bytes(pods: PodInputs, task: JobTask | None) -> int | None:
    """Return the size of the volume that pods without a claim keep their model in; None where that is not known. `task`
    is that of a Job; None stands for pods that serve.
    """
    size, source = pods.model_size, pods.spec.model.source
    if task == "plan":
        return _SMALL_FILES_BYTES
    if not source.is_remote:
        return _SMALL_FILES_BYTES + _count_kernel_bytes(pods)
    if size is None:
        return None
    share = _ARCHIVE_SHARE if source.http is not None else 1
    return round_up(share * size.file_bytes + size.file_bytes // 10 + _count_kernel_bytes(pods))


def compute_temporary_bytes(pods: PodInputs, task: JobTask | None) -> int | None:
    """Return the size of the volume for temporary files; None where that is not known. `task` is that of a Job; None
    stands for pods that serve.

    ONNX Runtime's weights are written there while they are loaded, in float32.
    """
    if task in ("plan", "fetch"):
        return _SMALL_FILES_BYTES
    hardware, size = find_hardware_class(pods.spec, pods.settings), pods.model_size
    if runs_torch(pods.spec, hardware):
        return _SMALL_FILES_BYTES + _count_kernel_bytes(pods)
    if size is None:
        return None
    memory = size.memory
    weights = _UNPLANNED_SHARE * size.file_bytes if memory is None else memory.fixed_bytes
    return round_up(_SMALL_FILES_BYTES + weights)


def compute_pod_storage(pods: PodInputs, task: JobTask | None) -> int | None:
    """Return the bytes of ephemeral storage that a pod needs; None where that is not known."""
    temporary = compute_temporary_bytes(pods, task)
    models = compute_models_bytes(pods, task) if pods.volume is None else 0
    if temporary is None or models is None:
        return None
    return models + temporary + _LOG_BYTES + _count_user_bytes(pods.spec)


def has_unbounded_volume(spec: EmbeddingServiceSpec) -> bool:
    """Return whether a volume of the user may take any part of the node's disk."""
    return any(volume.size_limit is None for volume in _list_disk_volumes(spec))


def is_storage_given(spec: EmbeddingServiceSpec) -> bool:
    """Return whether the user says how much ephemeral storage a container has."""
    resources = spec.resources
    return resources is not None and "ephemeral-storage" in {
        **(resources.limits or {}),
        **(resources.requests or {}),
    }


def _count_user_bytes(spec: EmbeddingServiceSpec) -> int:
    """Return the sizes of the user's own volumes on the node's disk, as far as they have one."""
    sizes = (parse_quantity(volume.size_limit) for volume in _list_disk_volumes(spec))
    return sum(math.ceil(size) for size in sizes if size is not None)


def _list_disk_volumes(spec: EmbeddingServiceSpec) -> list[EmptyDirVolume]:
    folders = (volume.empty_dir for volume in spec.pod.volumes or ())
    return [folder for folder in folders if folder is not None and folder.medium != "Memory"]


def _count_kernel_bytes(pods: PodInputs) -> int:
    has_accelerators = find_hardware_class(pods.spec, pods.settings).resource_name is not None
    return _KERNEL_BYTES if has_accelerators else 0
