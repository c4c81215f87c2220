"""Computes how much memory the pods of a model ask for on CPUs: by the plan that the runtime makes of the model, or
from the size of its files where it has made none.
"""

from __future__ import annotations

import math

from embedserve_operator.api.quantities import MIB, parse_quantity
from embedserve_operator.api.status import ModelMemory
from embedserve_operator.api.types import Batching, EmbeddingServiceSpec
from embedserve_operator.kube.objects import Manifest
from embedserve_operator.manifests.placement import find_hardware_class
from embedserve_operator.settings import RenderSettings
from embedserve_operator.state.models import ModelSize

_PROCESS_BYTES = 256 * MIB
"""The memory of the process, its libraries and its buffers."""
_STEP_BYTES = 64 * MIB

# The terms of the runtime's plan (embedserve_runtime.memory.plan) that do not depend on the model;
# tests/contract/test_memory_plan.py compares both.
_HEADROOM = 1.1
_RUNNING_BATCHES = 2
_MIN_BATCH_TOKENS, _MAX_BATCH_TOKENS, _BATCH_TOKENS_OF_CPU = 2_048, 16_384, 512
_MAX_TABLE_TOKENS = 512
_BODY_BYTES = 32 * MIB
_BODY_SHARE = 3
_RESULT_NUMBER_BYTES = 48
_QUEUE_INPUTS = 4_096
_DEFAULT_CPUS = 2


def compute_memory(model_bytes: int) -> int:
    """Return the bytes that a serving pod needs: its weights once, half as much for what a full batch holds,
    and the process.

    The figures behind it are in docs/hardware-classes.md. The result comes in steps, so that a commit that
    changes a few bytes changes nothing.
    """
    needed = _PROCESS_BYTES + model_bytes + model_bytes // 2
    return _round_up(needed)


def compute_planned_memory(memory: ModelMemory, spec: EmbeddingServiceSpec, cpus: int) -> int:
    """Return the bytes that a serving pod should be limited to: what it takes at its highest with the settings of the
    spec on `cpus` CPUs, and a tenth more, in steps.
    """
    batching = spec.batching or Batching()
    planned_tokens = max(_MIN_BATCH_TOKENS, min(_MAX_BATCH_TOKENS, _BATCH_TOKENS_OF_CPU * cpus))
    longest = min(spec.model.max_length or memory.max_length, memory.max_length)
    running = (_RUNNING_BATCHES if cpus > 1 else 1) * _compute_batch_bytes(
        memory, batching.max_batch_tokens or planned_tokens, longest
    )
    results = _RESULT_NUMBER_BYTES * memory.result_numbers * (batching.max_queue_inputs or _QUEUE_INPUTS)
    needed = (
        memory.fixed_bytes
        + max(running, memory.loading_bytes)
        + _BODY_SHARE * _BODY_BYTES
        + results
        + (batching.cache_bytes or 0)
    )
    return _round_up(math.ceil(_HEADROOM * needed))


def _compute_batch_bytes(memory: ModelMemory, tokens: int, longest: int) -> int:
    long_bytes = memory.long_token_bytes * longest if longest > _MAX_TABLE_TOKENS else 0
    return (
        memory.batch_bytes + memory.token_bytes * max(tokens, longest) + max(memory.score_bytes, long_bytes)
    )


def build_memory_resources(
    spec: EmbeddingServiceSpec, settings: RenderSettings, size: ModelSize | None
) -> Manifest:
    """Return the memory of a pod's `resources` where the user gives none: request and limit by the plan, or the request
    alone where only the size of the files is known, which says nothing of the longest text. Empty on accelerators,
    where host memory says nothing, and as long as nothing is known.
    """
    resources = spec.resources
    is_given = resources is not None and "memory" in {
        **(resources.limits or {}),
        **(resources.requests or {}),
    }
    if size is None or is_given or find_hardware_class(spec, settings).resource_name is not None:
        return {}
    if size.memory is not None:
        amount = format_mib(compute_planned_memory(size.memory, spec, _count_cpus(spec, settings)))
        return {"limits": {"memory": amount}, "requests": {"memory": amount}}
    cache_bytes = (spec.batching.cache_bytes if spec.batching is not None else None) or 0
    return {"requests": {"memory": format_mib(compute_memory(size.file_bytes) + cache_bytes)}}


def _count_cpus(spec: EmbeddingServiceSpec, settings: RenderSettings) -> int:
    """Return the CPUs that the batches of a pod are planned for; two where nobody says how many there are."""
    resources = spec.resources
    for amounts in (resources.limits, resources.requests) if resources is not None else ():
        cpus = parse_quantity((amounts or {}).get("cpu"))
        if cpus is not None:
            return max(1, math.ceil(cpus))
    return find_hardware_class(spec, settings).cpus or _DEFAULT_CPUS


def _round_up(count: int) -> int:
    return -(-count // _STEP_BYTES) * _STEP_BYTES


def format_mib(count: int) -> str:
    """Return a number of bytes as a quantity."""
    return f"{-(-count // MIB)}Mi"
