"""Runs the tasks of TEI's API, independent of their path: embed, embed_sparse and predict.

A task is created from a body first, so that a request with several can be refused before any of them runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import orjson
from starlette.requests import Request
from starlette.responses import Response

from embedserve_runtime.api.context import RequestContext, get_service
from embedserve_runtime.api.encoding import (
    format_numbers,
    write_number_arrays,
    write_rows,
    write_sparse_items,
)
from embedserve_runtime.api.errors import WrongShape
from embedserve_runtime.api.input_types import read_input_prompt, select_service
from embedserve_runtime.api.inputs import (
    read_inputs,
    read_request_options,
    read_untyped_options,
    record_inputs,
    truncation_side,
)
from embedserve_runtime.api.responses import build_result_response
from embedserve_runtime.api.schemas.tei import EmbedRequest, EmbedTokensRequest, PredictRequest
from embedserve_runtime.forward.outputs import OutputKind
from embedserve_runtime.service import (
    EmbedQuery,
    InferenceService,
    Pair,
    RequestUsage,
    ScoreQuery,
    ScoreResult,
)


@dataclass(frozen=True, slots=True)
class TeiTask:
    """A task. inputs: their number. run: returns the answer's JSON and its usage; raises any RequestError. service: the
    one that runs it, where that is not up to the caller."""

    inputs: int
    run: Callable[[InferenceService], Awaitable[tuple[bytes, RequestUsage]]]
    service: InferenceService | None = None


async def run_task(request: Request, task: TeiTask) -> Response:
    """Run a task and create its answer. Raises any RequestError."""
    service = task.service or get_service(request)
    content, usage = await task.run(service)
    return build_result_response(request, service, content, usage)


def build_embed_task(context: RequestContext, service: InferenceService, body: EmbedRequest) -> TeiTask:
    options = read_request_options(context, body.model)
    service = select_service(service, body, options.input_type)
    prompt = read_input_prompt(service.card, body, options.input_type)
    query = EmbedQuery(
        read_inputs(context, body.inputs, "inputs"),
        truncate=body.truncate,
        side=truncation_side(body.truncation_direction),
        prompt_name=prompt.name,
        prompt=prompt.text,
        normalize=body.normalize is not False,
        dimensions=body.dimensions,
        vector_space=options.vector_space,
        timeout=options.timeout,
        role=prompt.role,
    )

    async def run(service: InferenceService) -> tuple[bytes, RequestUsage]:
        embedded = await service.embed(query)
        return await write_rows(embedded.dense, write_number_arrays), embedded.usage

    return TeiTask(len(query.inputs), run, service)


def build_sparse_task(
    context: RequestContext, service: InferenceService, body: EmbedTokensRequest
) -> TeiTask:
    service, query = build_tokens_query(context, service, body, OutputKind.SPARSE)

    async def run(service: InferenceService) -> tuple[bytes, RequestUsage]:
        embedded = await service.embed(query)
        return await write_sparse_items(embedded.sparse), embedded.usage

    return TeiTask(len(query.inputs), run, service)


def build_predict_task(context: RequestContext, body: PredictRequest) -> TeiTask:
    inputs = body.inputs
    is_batch = isinstance(inputs, list) and not all(isinstance(item, str) for item in inputs)
    count = len(inputs) if is_batch else 1
    record_inputs(context, count, is_batch=is_batch)
    options = read_untyped_options(context, body.model)

    async def run(service: InferenceService) -> tuple[bytes, RequestUsage]:
        service.check_room(count)
        items = [_read_item(item) for item in inputs] if is_batch else [_read_item(inputs)]
        query = ScoreQuery(
            items,
            raw=bool(body.raw_scores),
            truncate=body.truncate,
            side=truncation_side(body.truncation_direction),
            vector_space=options.vector_space,
            timeout=options.timeout,
        )
        scored = await service.score(query)
        content = b",".join(_write_predictions(scored))
        return b"[" + content + b"]" if is_batch else content, scored.usage

    return TeiTask(count, run)


def build_tokens_query(
    context: RequestContext, service: InferenceService, body: EmbedTokensRequest, outputs: OutputKind
) -> tuple[InferenceService, EmbedQuery]:
    """Build the query of a body with inputs only, for the service of its task. Raises InvalidInput,
    VectorSpaceMismatch, WrongShape."""
    options = read_request_options(context, body.model)
    service = select_service(service, body, options.input_type)
    prompt = read_input_prompt(service.card, body, options.input_type)
    query = EmbedQuery(
        inputs=read_inputs(context, body.inputs, "inputs"),
        truncate=body.truncate,
        side=truncation_side(body.truncation_direction),
        prompt_name=prompt.name,
        prompt=prompt.text,
        vector_space=options.vector_space,
        timeout=options.timeout,
        outputs=outputs,
        role=prompt.role,
    )
    return service, query


def _read_item(value: str | list[str] | list[str | list[str]]) -> str | Pair:
    """Read one input in TEI's shapes: a text, or an array of one text or of two."""
    match value:
        case str(text) | [str(text)]:
            return text
        case [str(first), str(second)]:
            return Pair(first, second)
        case _:
            raise WrongShape(
                "`inputs` must be a text, a pair of texts, or a list of arrays of one text or two"
            )


def _write_predictions(scored: ScoreResult) -> list[bytes]:
    """Write a list of labels for each item, the most likely first."""
    labels = [orjson.dumps(label) for label in scored.labels]
    written = []
    for row, order in zip(scored.scores, scored.rank_labels(), strict=True):
        items = (
            b'{"score":%b,"label":%b}' % (score, labels[column])
            for column, score in zip(order.tolist(), format_numbers(row[order]), strict=True)
        )
        written.append(b"[" + b",".join(items) + b"]")
    return written
