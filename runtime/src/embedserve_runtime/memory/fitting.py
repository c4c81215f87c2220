"""Fits what a server takes at the same time to the memory that its container may take: pure functions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from embedserve_runtime.errors import MemoryTooSmall
from embedserve_runtime.memory.plan import (
    BODY_SHARE,
    FRONT_END_BYTES,
    HEADROOM,
    RESULT_NUMBER_BYTES,
    ServingLoad,
    plan_memory,
)
from embedserve_runtime.memory.sizes import MIB, ModelSizes

PREFERRED_MIN_BATCH_TOKENS = 512
"""Batches are not lowered further as long as something else can be: smaller ones cost throughput."""
MIN_TOKENS = 256
MIN_QUEUE_INPUTS = 512
MIN_MAX_LENGTH = 512
SHARED_BYTES = 70 * MIB
"""Bytes of a process that are pages of files, which the kernel takes back before it ends the process."""


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """The load that a server takes under a memory limit.

    load: what it serves at the same time. limit, planned: bytes; limit is None where there is none. max_http_workers:
    HTTP processes that there is room for; None for any number. lowered: what it does with less than was wanted, for
    people.
    """

    load: ServingLoad
    planned: int
    limit: int | None = None
    max_http_workers: int | None = None
    lowered: tuple[str, ...] = ()

    @property
    def max_concurrency(self) -> int | None:
        """Batches that there is room for at the same time; None for as many as the engine runs."""
        return None if self.limit is None else self.load.concurrency


def fit_load(model: ModelSizes, requested: ServingLoad, bounds: ServingLoad, limit: int | None) -> MemoryFit:
    """Return the largest load that stays within a limit: what is wanted, with as much more as fits, up to `bounds`; or
    less of it. Raises MemoryTooSmall where not even the model fits.

    Without a limit, and for models whose batches are not known, the bounds hold.
    """
    if limit is None or model.activations is None:
        return MemoryFit(bounds, plan_memory(model, requested).total, limit)
    usable = round(limit / HEADROOM)
    steps = [requested, *_iterate_lower(requested)]
    fitting = next((load for load in steps if plan_memory(model, load).total <= usable), None)
    if fitting is None:
        load = steps[-1]
        _check(model, load, requested, limit)
    else:
        load = _grow(model, fitting, bounds, usable)
    planned = plan_memory(model, load).total
    workers = max(1, (usable - planned) // (FRONT_END_BYTES + model.tokenizer))
    return MemoryFit(load, planned, limit, workers, tuple(_describe(requested, load)))


def _check(model: ModelSizes, min_load: ServingLoad, requested: ServingLoad, limit: int) -> None:
    """Raise MemoryTooSmall where the model, without any request, takes more than the limit."""
    idle_load = replace(min_load, pending_bytes=0, queue_inputs=0)
    needed = plan_memory(model, idle_load).total - SHARED_BYTES
    if needed <= limit:
        return
    smallest, full = (plan_memory(model, load).limit // MIB for load in (min_load, requested))
    raise MemoryTooSmall(
        f"the container may take {limit // MIB}Mi of memory, and the model needs {needed // MIB}Mi before any request; "
        f"a limit of {full}Mi (spec.resources.limits.memory) has room for batches of {requested.batch_tokens} tokens, "
        f"the least that would do is {smallest}Mi"
    )


def _iterate_lower(load: ServingLoad) -> Iterator[ServingLoad]:
    """Yield loads that take ever less: what costs least is lowered first."""
    while load.batch_tokens > PREFERRED_MIN_BATCH_TOKENS:
        load = replace(load, batch_tokens=max(PREFERRED_MIN_BATCH_TOKENS, load.batch_tokens // 2))
        yield load
    if load.queue_inputs > MIN_QUEUE_INPUTS:
        load = replace(load, queue_inputs=MIN_QUEUE_INPUTS)
        yield load
    if load.concurrency > 1:
        load = replace(load, concurrency=1)
        yield load
    if load.batch_tokens > MIN_TOKENS:
        load = replace(load, batch_tokens=MIN_TOKENS)
        yield load
    while load.max_length > MIN_MAX_LENGTH:
        load = replace(load, max_length=max(MIN_MAX_LENGTH, load.max_length // 2))
        yield load


def _grow(model: ModelSizes, load: ServingLoad, bounds: ServingLoad, usable: int) -> ServingLoad:
    """Return the load with what is left over shared by larger batches and by the bodies and results of more requests,
    up to the bounds. One part of four stays for further HTTP processes."""
    before = plan_memory(model, load).total
    left = max(0, usable - before) // 4
    larger = load
    while plan_memory(model, larger).total <= before + left:
        load = larger
        if load.batch_tokens >= bounds.batch_tokens:
            break
        larger = replace(load, batch_tokens=min(bounds.batch_tokens, 2 * load.batch_tokens))
    inputs = left // max(1, RESULT_NUMBER_BYTES * model.columns)
    return replace(
        load,
        pending_bytes=min(bounds.pending_bytes, load.pending_bytes + left // BODY_SHARE),
        queue_inputs=min(bounds.queue_inputs, load.queue_inputs + inputs),
    )


def _describe(requested: ServingLoad, load: ServingLoad) -> Iterator[str]:
    """Yield what is less than was wanted."""
    names = (
        ("batch_tokens", "tokens of a batch"),
        ("queue_inputs", "inputs that may wait"),
        ("concurrency", "batches at once"),
        ("max_length", "tokens of an input"),
    )
    for name, description in names:
        before, now = getattr(requested, name), getattr(load, name)
        if now < before:
            yield f"{now} {description} instead of {before}"
