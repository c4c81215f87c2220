"""The dialect of OpenAI: `POST /v1/embeddings` and `GET /v1/models`."""

from __future__ import annotations

import time

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from embedserve_runtime.api.context import context_of, server_of, service_of
from embedserve_runtime.api.encoding import openai_base64, openai_numbers, write_rows
from embedserve_runtime.api.errors import RouteNotFound
from embedserve_runtime.api.inputs import read_inputs, request_options
from embedserve_runtime.api.json_route import JsonRoute
from embedserve_runtime.api.responses import BytesResponse, result_response
from embedserve_runtime.api.routers.documented import error_responses
from embedserve_runtime.api.schemas.base import to_json
from embedserve_runtime.api.schemas.openai import (
    EmbeddingList,
    EmbeddingsBody,
    OpenAIErrorBody,
    OpenAIModel,
    OpenAIModelList,
)
from embedserve_runtime.service import EmbedQuery

STARTED = int(time.time())
"""When this process was started, which is when its model was created as far as OpenAI's clients are concerned."""

router = APIRouter(route_class=JsonRoute, tags=["OpenAI"], responses=error_responses(OpenAIErrorBody))


@router.post("/v1/embeddings", summary="Vectors, as OpenAI's API gives them", response_model=EmbeddingList)
@router.post("/embeddings", include_in_schema=False)
async def embeddings(request: Request, body: EmbeddingsBody) -> Response:
    service, context = service_of(request), context_of(request)
    options = request_options(context, body.model)
    query = EmbedQuery(
        read_inputs(context, body.input, "input"),
        normalize=True,
        dimensions=body.dimensions,
        vector_space=options.vector_space,
        timeout=options.timeout,
    )
    embedded = await service.embed(query)
    writer = openai_base64 if body.encoding_format == "base64" else openai_numbers
    rows = await write_rows(embedded.dense, writer)
    tokens = embedded.usage.tokens
    usage = b'{"prompt_tokens":%d,"total_tokens":%d}' % (tokens, tokens)
    model = orjson.dumps(server_of(request).model_name)
    content = b'{"object":"list","data":%b,"model":%b,"usage":%b}' % (rows, model, usage)
    return result_response(request, service, content, embedded.usage)


@router.get(
    "/v1/models",
    summary="The model served",
    response_model=OpenAIModelList,
    responses=error_responses(OpenAIErrorBody, 401, 503),
)
async def models(request: Request) -> Response:
    return BytesResponse(to_json(OpenAIModelList(data=[_model(request)])))


@router.get("/v1/models/{name:path}", include_in_schema=False)
async def model(request: Request) -> Response:
    found = _model(request)
    if request.path_params["name"] != found.id:
        raise RouteNotFound(f"no such model; this server has {found.id}")
    return BytesResponse(to_json(found))


def _model(request: Request) -> OpenAIModel:
    """Raises NotReady while there is none."""
    service_of(request)
    return OpenAIModel(id=server_of(request).model_name, created=STARTED)
