"""Serves OpenAI's routes `POST /v1/embeddings` and `GET /v1/models`."""

from __future__ import annotations

import time

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from embedserve_runtime.api.chunked_answers import write_openai_chunks
from embedserve_runtime.api.context import ServerContext, get_context, get_server_context, get_service
from embedserve_runtime.api.embedding_options import EmbeddingOptions, read_embedding_options
from embedserve_runtime.api.encoding import get_openai_writer, write_rows
from embedserve_runtime.api.errors import RouteNotFound
from embedserve_runtime.api.input_types import read_input_prompt, select_service, split_model_name
from embedserve_runtime.api.inputs import read_inputs, read_request_options
from embedserve_runtime.api.json_route import JsonRoute
from embedserve_runtime.api.responses import BytesResponse, build_result_response
from embedserve_runtime.api.routers.error_docs import error_responses
from embedserve_runtime.api.schemas.base import to_json
from embedserve_runtime.api.schemas.openai import (
    EmbeddingRequest,
    EmbeddingResponse,
    OpenAIErrorResponse,
    OpenAIModel,
    OpenAIModelList,
)
from embedserve_runtime.errors import InvalidInput
from embedserve_runtime.service import (
    EmbedQuery,
    InferenceService,
    RequestUsage,
    average_chunks,
    embed_late_chunks,
)

STARTED = int(time.time())
"""The time at which this process was started, which OpenAI's clients see as the creation of the model."""

router = APIRouter(route_class=JsonRoute, tags=["OpenAI"], responses=error_responses(OpenAIErrorResponse))


@router.post(
    "/v1/embeddings", summary="Vectors, as OpenAI's API gives them", response_model=EmbeddingResponse
)
@router.post("/embeddings", include_in_schema=False)
async def embeddings(request: Request, body: EmbeddingRequest) -> Response:
    service, context = get_service(request), get_context(request)
    options = read_request_options(context, body.model)
    service = select_service(service, body, options.input_type)
    inputs = read_inputs(context, body.input, "input")
    if list in map(type, inputs):
        _check_token_ids(get_server_context(request))
    prompt = read_input_prompt(service.card, body, options.input_type)
    embedding_options = read_embedding_options(service.card, body)
    query = EmbedQuery(
        inputs,
        truncate=embedding_options.truncate,
        side=embedding_options.side,
        max_length=embedding_options.max_length,
        prompt_name=prompt.name,
        prompt=prompt.text,
        normalize=embedding_options.normalize,
        dimensions=embedding_options.dimensions,
        vector_space=options.vector_space,
        timeout=options.timeout,
        role=prompt.role,
    )
    rows, used = await _embed(service, query, embedding_options)
    tokens = used.tokens
    usage = b'{"prompt_tokens":%d,"total_tokens":%d}' % (tokens, tokens)
    model = orjson.dumps(get_server_context(request).model_name)
    content = b'{"object":"list","data":%b,"model":%b,"usage":%b}' % (rows, model, usage)
    return build_result_response(request, service, content, used)


async def _embed(
    service: InferenceService, query: EmbedQuery, embedding_options: EmbeddingOptions
) -> tuple[bytes, RequestUsage]:
    """Embed the inputs and write the items of the answer. Raises any RequestError."""
    if embedding_options.overflow is not None:
        chunked = await service.embed_chunks(query)
        if embedding_options.overflow == "chunk-mean":
            chunked = average_chunks(service.card, query, chunked)
        return await write_openai_chunks(chunked, embedding_options.row_writer), chunked.usage
    embedded = await (
        embed_late_chunks(service, query) if embedding_options.late_chunking else service.embed(query)
    )
    writer = get_openai_writer(embedding_options.output_dtype, as_base64=embedding_options.as_base64)
    return await write_rows(embedded.dense, writer), embedded.usage


def _check_token_ids(server: ServerContext) -> None:
    """Count a request with token ids. Raises InvalidInput unless the settings allow it.

    Those of OpenAI's tokenizers are valid ids of a large vocabulary, and give the vector of other words.
    """
    server.metrics.token_ids_sent("taken" if server.takes_openai_token_ids else "refused")
    if not server.takes_openai_token_ids:
        raise InvalidInput(
            "`input` has token ids, which clients of OpenAI make with its own tokenizer: here they stand for other "
            "words. Send texts; in LangChain set check_embedding_ctx_length=False. Ids of this model's vocabulary are "
            "taken by /embed, and here with the setting server.openai_token_ids"
        )


@router.get(
    "/v1/models",
    summary="The model served",
    response_model=OpenAIModelList,
    responses=error_responses(OpenAIErrorResponse, 401, 503),
)
async def models(request: Request) -> Response:
    return BytesResponse(to_json(OpenAIModelList(data=[_describe_model(request)])))


@router.get("/v1/models/{name:path}", include_in_schema=False)
async def model(request: Request) -> Response:
    served = _describe_model(request)
    try:
        name, _ = split_model_name(request.path_params["name"], served.id)
    except InvalidInput:
        name = ""
    if name != served.id:
        raise RouteNotFound(f"no such model; this server has {served.id}")
    return BytesResponse(to_json(served))


def _describe_model(request: Request) -> OpenAIModel:
    """Describe the model. Raises NotReady while there is none."""
    get_service(request)
    return OpenAIModel(id=get_server_context(request).model_name, created=STARTED)
