"""Serves the routes that platforms call, which do not name the task: `POST /`, `/invocations`, `/vertex`.

The model and the shape of the body decide. An `inputs` object with a `source_sentence` is a similarity; among Vertex's
instances, one with `query` and `texts` or `documents` is ranked; else the model does what it is for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from embedserve_runtime.api.context import RequestContext, get_context, get_service
from embedserve_runtime.api.errors import WrongShape
from embedserve_runtime.api.inputs import merge_aliases, read_request_options, record_inputs
from embedserve_runtime.api.json_route import JsonRoute
from embedserve_runtime.api.responses import BytesResponse, record_usage, space_headers
from embedserve_runtime.api.routers.error_docs import error_responses
from embedserve_runtime.api.routers.rank_task import build_rank_task
from embedserve_runtime.api.routers.tei import answer_similarity
from embedserve_runtime.api.routers.tei_tasks import (
    TeiTask,
    build_embed_task,
    build_predict_task,
    build_sparse_task,
    run_task,
)
from embedserve_runtime.api.schemas.parsing import read_python
from embedserve_runtime.api.schemas.ranking import RerankRequest
from embedserve_runtime.api.schemas.tei import (
    EmbedRequest,
    EmbedTokensRequest,
    ErrorResponse,
    InvocationRequest,
    PredictRequest,
    SimilarityRequest,
    VertexRequest,
)
from embedserve_runtime.errors import (
    BatchTooLarge,
    DeadlineExceeded,
    EmptyInput,
    InputTooLong,
    InvalidInput,
    NotFinite,
    UnknownPrompt,
    WrongModelKind,
)
from embedserve_runtime.forward.outputs import OutputKind
from embedserve_runtime.service import InferenceService, RequestUsage
from embedserve_runtime.service.concurrency import merge_usages

# Of one request: enough for full batches, and few enough for the event loop to have turns for other requests.
MAX_CONCURRENT_INSTANCES = 256
_ERRORS_OF_INPUTS = (
    BatchTooLarge,
    EmptyInput,
    InputTooLong,
    InvalidInput,
    NotFinite,
    UnknownPrompt,
    WrongModelKind,
    WrongShape,
)

router = APIRouter(route_class=JsonRoute, tags=["platforms"], responses=error_responses(ErrorResponse))


@router.post("/", summary="The model's own task, for platforms that know one path", response_model=Any)
async def default(request: Request, body: InvocationRequest) -> Response:
    """Answer with the model's own task, or a similarity."""
    content = body.content
    if isinstance(content.get("inputs"), dict):
        return await answer_similarity(request, read_python(SimilarityRequest, content))
    parameters = content.pop("parameters", None) or {}
    task = _choose_task(get_context(request), get_service(request), _spread_parameters(content, parameters))
    return await run_task(request, task)


@router.post("/invocations", summary="As Amazon SageMaker calls it", response_model=Any)
async def invocations(request: Request, body: InvocationRequest) -> Response:
    return await default(request, body)


@router.post("/vertex", summary="As Vertex AI calls it", response_model=Any)
async def vertex(request: Request, body: VertexRequest) -> Response:
    service, context = get_service(request), get_context(request)
    if not body.instances:
        raise EmptyInput("`instances` cannot be empty")
    # Each instance has an input at least: refused before any of them is looked at.
    service.check_room(len(body.instances))
    common = {**(body.parameters or {}), **({} if body.model is None else {"model": body.model})}
    tasks = await _build_tasks(context, service, body.instances, common)
    count = sum(task.inputs for task in tasks)
    record_inputs(context, count, is_batch=True)
    service.check_room(count)
    service = _select_common_service(service, tasks)
    seconds = service.bound_seconds(read_request_options(context).timeout)
    parts = await _run_all(service, tasks, seconds)
    record_usage(context.facts, merge_usages([usage for _, usage in parts]))
    predictions = [prediction for prediction, _ in parts]
    return BytesResponse(b'{"predictions":[' + b",".join(predictions) + b"]}", headers=space_headers(service))


def _choose_task(context: RequestContext, service: InferenceService, content: Any) -> TeiTask:
    """Choose the model's main task, or a ranking where the body is one. Raises WrongShape."""
    card = service.card
    if card.main_output in (OutputKind.LOGITS, OutputKind.MULTI_VECTOR) and _is_ranking(content):
        return build_rank_task(context, read_python(RerankRequest, content))
    if card.main_output is OutputKind.LOGITS:
        return build_predict_task(context, read_python(PredictRequest, content))
    if card.main_output is OutputKind.SPARSE:
        return build_sparse_task(context, service, read_python(EmbedTokensRequest, content))
    return build_embed_task(context, service, read_python(EmbedRequest, content))


def _spread_parameters(content: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body with the members of `parameters` beside its own. Raises InvalidInput where the two differ."""
    merged = {
        name: merge_aliases(**{name: content.get(name), f"parameters.{name}": value})
        for name, value in parameters.items()
    }
    return {**content, **merged}


def _fill_in(content: Mapping[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
    """Return an instance with the fields of all instances that it does not have itself."""
    return {**common, **{name: value for name, value in content.items() if value is not None}}


def _select_common_service(service: InferenceService, tasks: Sequence[TeiTask]) -> InferenceService:
    """Return the service that runs all tasks. Raises InvalidInput where they would make vectors of several spaces."""
    services = {id(each): each for each in (task.service or service for task in tasks)}
    if len(services) > 1:
        raise InvalidInput("`instances` ask for several tasks of the model; send one request for each")
    return next(iter(services.values()))


def _is_ranking(content: Any) -> bool:
    return isinstance(content, dict) and "query" in content and ("texts" in content or "documents" in content)


async def _build_tasks(
    context: RequestContext, service: InferenceService, instances: Sequence[Any], common: Mapping[str, Any]
) -> list[TeiTask]:
    """Build the task of each instance. common: fields of all of them. Lets others have the event loop meanwhile."""
    tasks: list[TeiTask] = []
    for index, content in enumerate(instances):
        if index % MAX_CONCURRENT_INSTANCES == 0:
            await asyncio.sleep(0)
        fields = _fill_in(content, common) if common and isinstance(content, dict) else content
        tasks.append(_build_instance_task(context, service, index, fields))
    return tasks


def _build_instance_task(
    context: RequestContext, service: InferenceService, index: int, content: Any
) -> TeiTask:
    with _naming_instance(index, has_one_input=False):
        if _is_ranking(content):
            service.check_ranks()
        return _choose_task(context, service, content)


@contextmanager
def _naming_instance(index: int, *, has_one_input: bool) -> Iterator[None]:
    """Make errors about the inputs of an instance name it: a client of Vertex knows no other inputs."""
    try:
        yield
    except _ERRORS_OF_INPUTS as error:
        rest = error.message.removeprefix("input 0") if has_one_input else error.message
        message = f"instance {index}{rest}" if rest != error.message else f"instance {index}: {rest}"
        raise type(error)(message) from error


async def _run_all(
    service: InferenceService, tasks: Sequence[TeiTask], seconds: float
) -> list[tuple[bytes, RequestUsage]]:
    """Run the tasks, some at a time; the first failure cancels the others.

    seconds: the time for all of them together. Raises DeadlineExceeded.
    """
    answers: dict[int, tuple[bytes, RequestUsage]] = {}
    pending = iter(enumerate(tasks))

    async def run_pending() -> None:
        for index, task in pending:
            with _naming_instance(index, has_one_input=task.inputs == 1):
                answers[index] = await task.run(service)

    running = [asyncio.ensure_future(run_pending()) for _ in range(min(len(tasks), MAX_CONCURRENT_INSTANCES))]
    try:
        async with asyncio.timeout(seconds):
            await asyncio.gather(*running)
    except TimeoutError as error:
        raise DeadlineExceeded(f"the instances were not answered within {seconds:g} s; send fewer") from error
    finally:
        for run in running:
            run.cancel()
    return [answers[index] for index in range(len(tasks))]
