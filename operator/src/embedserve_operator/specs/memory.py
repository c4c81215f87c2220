"""How much memory a model asks for on a CPU, from the size of its files."""

from __future__ import annotations

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.settings import RenderSettings
from embedserve_operator.specs.placement import hardware_of

_MIB = 2**20
_BESIDE_THE_MODEL = 256 * _MIB
"""The process, its libraries and its buffers."""
_STEP = 64 * _MIB


def memory_needed(model_bytes: int) -> int:
    """Bytes that a serving pod needs: its weights once, half as much for what a full batch holds, and the process.

    Figures behind it: docs/hardware-classes.md. In steps, so that a commit that changes a few bytes changes nothing.
    """
    needed = _BESIDE_THE_MODEL + model_bytes + model_bytes // 2
    return -(-needed // _STEP) * _STEP


def memory_request(
    spec: EmbeddingServiceSpec, settings: RenderSettings, model_bytes: int | None
) -> str | None:
    """What a pod requests where the user says nothing of memory; None on accelerators, whose host memory is no measure,
    and as long as the size is not known."""
    given = spec.resources
    said = given is not None and "memory" in {**(given.limits or {}), **(given.requests or {})}
    if model_bytes is None or said or hardware_of(spec, settings).resource_name is not None:
        return None
    return in_mib(memory_needed(model_bytes))


def in_mib(count: int) -> str:
    """A number of bytes as a quantity."""
    return f"{-(-count // _MIB)}Mi"
