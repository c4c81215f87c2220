"""Implements `kubectl embedserve model`: it says which model a service serves, where it came from,
and what comes next.
"""

from __future__ import annotations

from collections.abc import Iterator

from embedserve_operator.api.quantities import MIB
from embedserve_operator.api.status import (
    AdapterTask,
    ConversionStatus,
    EmbeddingServiceStatus,
    Fetching,
    JobStatus,
)

_UNKNOWN = "-"


def describe_model(status: EmbeddingServiceStatus) -> str:
    """Return what the status knows about the model, one line for each fact."""
    rows = [*_list_served(status), *_list_pending(status)]
    width = max(len(name) for name, _ in rows)
    return "".join(f"{name.ljust(width)}   {value}\n" for name, value in rows)


def _list_served(status: EmbeddingServiceStatus) -> Iterator[tuple[str, str]]:
    model, space = status.model, status.vector_space
    size = model.size_bytes if model is not None else None
    yield "SOURCE", model.source if model is not None else _UNKNOWN
    yield "COMMIT", (model.revision if model is not None else None) or _UNKNOWN
    yield "LICENCE", (model.licence if model is not None else None) or _UNKNOWN
    yield "SIZE", _UNKNOWN if size is None else f"{size / MIB:.1f} MiB ({size} bytes)"
    yield "DIGEST", (model.digest if model is not None else None) or _UNKNOWN
    yield "SPACE", (space.id if space is not None else None) or _UNKNOWN
    if model is not None and model.adapter_tasks is not None:
        yield "TASKS", ", ".join(map(_describe_task, model.adapter_tasks))


def _list_pending(status: EmbeddingServiceStatus) -> Iterator[tuple[str, str]]:
    if status.plan is not None:
        yield "PLAN", _describe_job(status.plan)
    if status.fetch is not None:
        yield "FETCH", _describe_job(status.fetch)
    if status.model is not None and status.model.fetching is not None:
        yield "PROGRESS", _describe_progress(status.model.fetching)
    if status.conversion is not None:
        yield "CONVERSION", _describe_conversion(status.conversion)


def _describe_task(task: AdapterTask) -> str:
    return task.name if task.vector_space is None else f"{task.name} ({task.vector_space})"


def _describe_job(job: JobStatus) -> str:
    cause = f": {job.reason}: {job.message}" if job.reason is not None else ""
    return f"{job.state} ({job.job}){cause}"


def _describe_progress(fetching: Fetching) -> str:
    remaining = "" if fetching.seconds_remaining is None else f", {fetching.seconds_remaining} s left"
    return (
        f"{fetching.phase}, {fetching.bytes_done / MIB:.1f} of {fetching.bytes_total / MIB:.1f} MiB, "
        f"{fetching.bytes_per_second / MIB:.1f} MiB/s{remaining}"
    )


def _describe_conversion(conversion: ConversionStatus) -> str:
    if conversion.state != "Succeeded" or conversion.chosen is None:
        return _describe_job(conversion)
    parity = next(
        (variant.min_cosine for variant in conversion.variants if variant.precision == conversion.chosen),
        None,
    )
    measured = "" if parity is None else f", least cosine to float32 {parity:.4f}"
    return f"{conversion.chosen}{measured} ({conversion.job})"
