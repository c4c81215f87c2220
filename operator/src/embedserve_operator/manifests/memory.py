"""Computes how much memory a model requests on a CPU, from the size of its files."""

from __future__ import annotations

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.manifests.placement import find_hardware_class
from embedserve_operator.settings import RenderSettings

_MIB = 2**20
_PROCESS_BYTES = 256 * _MIB
"""The memory of the process, its libraries and its buffers."""
_STEP_BYTES = 64 * _MIB


def compute_memory(model_bytes: int) -> int:
    """Return the bytes that a serving pod needs: its weights once, half as much for what a full batch holds,
    and the process.

    The figures behind it are in docs/hardware-classes.md. The result comes in steps, so that a commit that
    changes a few bytes changes nothing.
    """
    needed = _PROCESS_BYTES + model_bytes + model_bytes // 2
    return -(-needed // _STEP_BYTES) * _STEP_BYTES


def choose_memory_request(
    spec: EmbeddingServiceSpec, settings: RenderSettings, model_bytes: int | None
) -> str | None:
    """Return what a pod requests where the user gives no memory; None on accelerators, where host memory says
    nothing, and as long as the size is not known.
    """
    given = spec.resources
    said = given is not None and "memory" in {**(given.limits or {}), **(given.requests or {})}
    if model_bytes is None or said or find_hardware_class(spec, settings).resource_name is not None:
        return None
    cache_bytes = (spec.batching.cache_bytes if spec.batching is not None else None) or 0
    return format_mib(compute_memory(model_bytes) + cache_bytes)


def format_mib(count: int) -> str:
    """Return a number of bytes as a quantity."""
    return f"{-(-count // _MIB)}Mi"
