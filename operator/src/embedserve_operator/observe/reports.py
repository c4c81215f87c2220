"""Reads what the runtime writes at the end of a container: JSON in the termination message.

`fetch` and `convert` report what they found when they succeed, and any container reports a reason and a
message when it fails.
"""

from __future__ import annotations

import re

from pydantic import StrictStr

from embedserve_operator.api.status import (
    MAX_ADAPTER_TASK_LENGTH,
    MAX_ADAPTER_TASKS,
    AdapterTask,
    ModelMemory,
)
from embedserve_operator.kube.views.base import Count, Flag, Items, Maybe, Number, Text, View
from embedserve_operator.state.jobs import ConversionResult, VariantReport
from embedserve_operator.state.models import ModelReport

_REASON = re.compile(r"^[A-Z][A-Za-z0-9]{0,63}$")


def is_reason(text: str) -> bool:
    """Return whether a text has the form of a machine-readable reason."""
    return _REASON.match(text) is not None


class ReportedMemory(View):
    """The report of a fetch on the memory that its model takes."""

    fixed_bytes: Count
    loading_bytes: Count
    batch_bytes: Count
    token_bytes: Count
    score_bytes: Count
    long_token_bytes: Count
    result_numbers: Count
    max_length: Count


class ReportedTask(View):
    """The report of a fetch on a task that the model has an adapter for."""

    name: Text
    vector_space: Text


class ReportedModel(View):
    """The report of a fetch on the model that it found."""

    source: Text
    revision: Text
    digest: Text
    size_bytes: Count
    dimensions: Count
    vector_space: Text
    former_vector_space: Text
    licence: Text
    outputs: Items[StrictStr]
    needs_export: Flag
    onnx_outputs: Maybe[Items[StrictStr]]
    guesses_pooling: Flag
    adapter_tasks: Items[ReportedTask]
    memory: Maybe[ReportedMemory]


class ReportedVariant(View):
    """The report of a conversion on one precision."""

    precision: Text
    published: Flag
    reason: Text
    mean_cosine: Number
    min_cosine: Number
    max_difference: Number
    rank_agreement: Number
    tokens_per_second: Number


class ReportedConversion(View):
    """The report of a conversion on its outcome."""

    artifact: Text
    vector_space: Text
    former_vector_space: Text
    chosen: Text
    variants: Items[ReportedVariant]
    dimensions: Count
    outputs: Items[StrictStr]
    guesses_pooling: Flag


class TerminationMessage(View):
    """The message that a container of the runtime ends with: a reason and a message where it fails, a report where it
    succeeds."""

    reason: Text
    message: Text
    retryable: Flag
    model: Maybe[ReportedModel]
    conversion: Maybe[ReportedConversion]


def read_model_report(reported: ReportedModel) -> ModelReport:
    """Return what a fetch reported at its end."""
    return ModelReport(
        source=reported.source,
        revision=reported.revision or None,
        digest=reported.digest or None,
        size_bytes=reported.size_bytes or None,
        dimensions=reported.dimensions or None,
        vector_space=reported.vector_space or None,
        licence=reported.licence or None,
        outputs=reported.outputs,
        needs_export=reported.needs_export,
        onnx_outputs=reported.onnx_outputs,
        guesses_pooling=reported.guesses_pooling,
        former_vector_space=reported.former_vector_space or None,
        adapter_tasks=_read_adapter_tasks(reported.adapter_tasks),
        memory=None if reported.memory is None else read_memory(reported.memory),
    )


def _read_adapter_tasks(reported: tuple[ReportedTask, ...]) -> tuple[AdapterTask, ...]:
    tasks = (
        AdapterTask(name=task.name, vector_space=task.vector_space or None)
        for task in reported
        if 0 < len(task.name) <= MAX_ADAPTER_TASK_LENGTH
    )
    return tuple(tasks)[:MAX_ADAPTER_TASKS]


def read_memory(reported: ReportedMemory) -> ModelMemory | None:
    """Return what a model takes in memory; None where the report does not say."""
    memory = ModelMemory(**reported.model_dump())
    # Without one of these it is not a plan, and less would be asked for than the model needs.
    return memory if memory.fixed_bytes and memory.token_bytes and memory.max_length else None


def read_conversion_result(reported: ReportedConversion) -> ConversionResult:
    """Return what a conversion reported at its end."""
    return ConversionResult(
        artifact=reported.artifact or None,
        vector_space=reported.vector_space or None,
        chosen=reported.chosen or None,
        variants=tuple(_read_variant(variant) for variant in reported.variants),
        dimensions=reported.dimensions or None,
        outputs=reported.outputs,
        guesses_pooling=reported.guesses_pooling,
        former_vector_space=reported.former_vector_space or None,
    )


def _read_variant(reported: ReportedVariant) -> VariantReport:
    return VariantReport(
        precision=reported.precision,
        published=reported.published,
        reason=reported.reason or None,
        mean_cosine=reported.mean_cosine,
        min_cosine=reported.min_cosine,
        max_difference=reported.max_difference,
        rank_agreement=reported.rank_agreement,
        tokens_per_second=reported.tokens_per_second,
    )
