"""Computes how much memory containers need on CPUs: by the plan that the runtime makes of the model, or from the size
of its files where it has made none.
"""

from __future__ import annotations

import math
from decimal import Decimal

from embedserve_operator.api.quantities import MIB
from embedserve_operator.api.status import ModelMemory
from embedserve_operator.api.types import Batching, EmbeddingServiceSpec

FETCH_BYTES = 512 * MIB
"""The memory of what fetches and describes a model, whatever its size; measured in docs/engineering/memory.md."""
TORCH_BYTES = 1536 * MIB
"""The memory of torch with its libraries for accelerators, which what fetches imports where the image has them."""
_PROCESS_BYTES = 256 * MIB
"""The memory of the process, its libraries and its buffers."""
_STEP_BYTES = 64 * MIB
_GROWTH = Decimal("1.5")
_CONVERSION_SHARE = 1.5
"""The greatest memory of a conversion for each byte of a model in memory (docs/engineering/conversion.md)."""
_MAX_CHECKED_TOKENS = 2_048
"""The tokens of the longest text that a conversion compares."""

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


def compute_unplanned_memory(file_bytes: int, spec: EmbeddingServiceSpec) -> int:
    """Return the bytes that a serving pod needs, as far as the size of the files says: its weights once, half as much
    for what a full batch holds, the process and the cache of vectors.

    The figures behind it are in docs/hardware-classes.md. The result comes in steps, so that a commit that
    changes a few bytes changes nothing.
    """
    needed = _PROCESS_BYTES + file_bytes + file_bytes // 2
    return round_up(needed) + _get_cache_bytes(spec)


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
        + _get_cache_bytes(spec)
    )
    return round_up(math.ceil(_HEADROOM * needed))


def compute_conversion_memory(memory: ModelMemory) -> int:
    """Return the bytes that the conversion of a model should be limited to: for its weights beside those of a variant,
    and for the texts on which both are compared, in steps.
    """
    longest = min(_MAX_CHECKED_TOKENS, memory.max_length)
    batch = _compute_batch_bytes(memory, _MIN_BATCH_TOKENS, longest)
    return round_up(math.ceil(_CONVERSION_SHARE * memory.fixed_bytes) + batch)


def _get_cache_bytes(spec: EmbeddingServiceSpec) -> int:
    return (spec.batching.cache_bytes if spec.batching is not None else None) or 0


def _compute_batch_bytes(memory: ModelMemory, tokens: int, longest: int) -> int:
    long_bytes = memory.long_token_bytes * longest if longest > _MAX_TABLE_TOKENS else 0
    return (
        memory.batch_bytes + memory.token_bytes * max(tokens, longest) + max(memory.score_bytes, long_bytes)
    )


def grow(amount: Decimal) -> int:
    """Return half as much again as an amount that was not enough, in steps: how much more would have been used is not
    known.
    """
    return round_up(int(amount * _GROWTH))


def round_up(count: int) -> int:
    """Return a number of bytes as the next multiple of 64 MiB."""
    return -(-count // _STEP_BYTES) * _STEP_BYTES


def format_mib(count: int) -> str:
    """Return a number of bytes as a quantity."""
    return f"{-(-count // MIB)}Mi"
