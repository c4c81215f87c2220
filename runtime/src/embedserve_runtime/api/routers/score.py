"""Serves the native route `POST /v1/score`, which scores documents for a query by several measures at once."""

from __future__ import annotations

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from embedserve_runtime.api.context import get_context, get_server_context, get_service
from embedserve_runtime.api.encoding import write_number_arrays
from embedserve_runtime.api.input_types import InputTypeName, select_pair_service
from embedserve_runtime.api.inputs import merge_aliases, read_request_options, record_inputs, truncation_side
from embedserve_runtime.api.json_route import JsonRoute
from embedserve_runtime.api.responses import build_result_response
from embedserve_runtime.api.routers.error_docs import error_responses
from embedserve_runtime.api.schemas.messages import MessageErrorResponse
from embedserve_runtime.api.schemas.score import ScoreRequest, ScoreResponse
from embedserve_runtime.service import Measure, RelevanceQuery, compute_relevance

router = APIRouter(route_class=JsonRoute, tags=["native"], responses=error_responses(MessageErrorResponse))


@router.post(
    "/v1/score",
    summary="How well documents answer a query, by several measures at once",
    response_model=ScoreResponse,
)
async def score(request: Request, body: ScoreRequest) -> Response:
    context = get_context(request)
    options = read_request_options(context, body.model)
    task: InputTypeName | None = merge_aliases(
        task=body.task, input_type=body.input_type, model=options.input_type
    )
    service, prompt_names = select_pair_service(
        get_service(request), task, (body.query_prompt_name, body.document_prompt_name)
    )
    record_inputs(context, len(body.documents), is_batch=True)
    query = RelevanceQuery(
        body.query,
        body.documents,
        weights=_read_weights(body),
        divide=body.divide_by_weights is not False,
        query_prompt_name=prompt_names[0],
        document_prompt_name=prompt_names[1],
        truncate=body.truncate,
        side=truncation_side(body.truncation_direction),
        vector_space=options.vector_space,
        timeout=options.timeout,
    )
    relevance = await compute_relevance(service, query)
    measures = b",".join(
        b'"%b":%b' % (measure.encode(), write_number_arrays(scores, 0))
        for measure, scores in relevance.measures.items()
    )
    members = (
        b'"model":' + orjson.dumps(get_server_context(request).model_name),
        b'"vector_space":' + orjson.dumps(service.card.vector_space),
        b'"scores":' + write_number_arrays(relevance.scores, 0),
        b'"measures":{' + measures + b"}",
        b'"weights":' + orjson.dumps({str(name): weight for name, weight in relevance.weights.items()}),
    )
    return build_result_response(request, service, b"{" + b",".join(members) + b"}", relevance.usage)


def _read_weights(body: ScoreRequest) -> dict[Measure, float]:
    weights = {measure: getattr(body.weights, measure, None) for measure in Measure}
    return {measure: weight for measure, weight in weights.items() if weight is not None}
