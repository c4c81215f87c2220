"""Reads from the settings what a server is to serve at the same time."""

from __future__ import annotations

from dataclasses import replace

from embedserve_runtime.config import BatchingSettings, RuntimeConfig, ServerSettings
from embedserve_runtime.memory.plan import (
    PLANNED_PENDING_BYTES,
    PLANNED_QUEUE_INPUTS,
    ServingLoad,
    choose_planned_tokens,
)

MAX_MEASURED_TOKENS = 65_536
"""The largest budget that is measured (`scheduling.calibration.MAX_BUDGET`)."""
CONCURRENCY = 2
"""Batches that ONNX Runtime runs at once with several threads (`engines.onnx.engine.CONCURRENCY`)."""


def describe_load(config: RuntimeConfig, max_length: int, engine: str, cpus: int) -> ServingLoad:
    """Return the load of a server.

    Settings that differ from their defaults are used as they are. Defaults suit machines without a memory limit, and
    are replaced by smaller values here. max_length: tokens of the longest text. engine: the engine that runs the model.
    cpus: the CPUs that the process may use.
    """
    batching, server = config.batching, config.server
    budget = batching.max_batch_tokens
    threads = config.engine.threads or cpus
    pending, inputs = server.max_pending_bytes, batching.max_queue_inputs
    if pending == ServerSettings.model_fields["max_pending_bytes"].default:
        pending = max(PLANNED_PENDING_BYTES, server.max_body_bytes)
    if inputs == BatchingSettings.model_fields["max_queue_inputs"].default:
        inputs = PLANNED_QUEUE_INPUTS
    return ServingLoad(
        batch_tokens=choose_planned_tokens(cpus) if budget == "auto" else budget,
        max_length=max_length,
        concurrency=CONCURRENCY if engine == "onnx" and threads > 1 else 1,
        http_workers=server.first_workers,
        pending_bytes=pending,
        queue_inputs=inputs,
        cache_bytes=batching.cache_bytes,
    )


def describe_bounds(config: RuntimeConfig, load: ServingLoad) -> ServingLoad:
    """Return the most that a server may take at the same time by its settings alone, where nothing limits its
    memory."""
    batching = config.batching
    return replace(
        load,
        batch_tokens=MAX_MEASURED_TOKENS if batching.max_batch_tokens == "auto" else load.batch_tokens,
        pending_bytes=config.server.max_pending_bytes,
        queue_inputs=batching.max_queue_inputs,
    )
