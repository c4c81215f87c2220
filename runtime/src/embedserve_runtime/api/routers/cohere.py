"""Serves Cohere's embedding route, `POST /v2/embed`."""

from __future__ import annotations

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from embedserve_runtime.api.context import get_context, get_service
from embedserve_runtime.api.encoding import RowWriter, get_base64_writer, get_number_writer, write_rows
from embedserve_runtime.api.errors import WrongShape
from embedserve_runtime.api.input_types import read_input_prompt, select_service
from embedserve_runtime.api.inputs import check_dimensions, read_request_options, record_inputs
from embedserve_runtime.api.json_route import JsonRoute
from embedserve_runtime.api.responses import build_result_response
from embedserve_runtime.api.routers.error_docs import error_responses
from embedserve_runtime.api.schemas.base import to_json
from embedserve_runtime.api.schemas.cohere import (
    CohereEmbedRequest,
    CohereEmbedResponse,
    CohereMeta,
    CohereUnits,
    CohereVersion,
)
from embedserve_runtime.api.schemas.messages import MessageErrorResponse
from embedserve_runtime.errors import InvalidInput
from embedserve_runtime.heads.quantization import OutputDtype
from embedserve_runtime.service import EmbedQuery

_WRITERS: dict[str, RowWriter] = {
    "float": get_number_writer(OutputDtype.FLOAT32),
    "int8": get_number_writer(OutputDtype.INT8),
    "uint8": get_number_writer(OutputDtype.UINT8),
    "binary": get_number_writer(OutputDtype.BINARY),
    "ubinary": get_number_writer(OutputDtype.UBINARY),
    "base64": get_base64_writer(OutputDtype.FLOAT32),
}

router = APIRouter(route_class=JsonRoute, tags=["Cohere"], responses=error_responses(MessageErrorResponse))


@router.post("/v2/embed", summary="Vectors, as Cohere's API gives them", response_model=CohereEmbedResponse)
async def embed(request: Request, body: CohereEmbedRequest) -> Response:
    service, context = get_service(request), get_context(request)
    options = read_request_options(context, body.model)
    service = select_service(service, body, options.input_type)
    texts = _read_texts(body)
    record_inputs(context, len(texts), is_batch=True)
    check_dimensions(service.card, output_dimension=body.output_dimension)
    prompt = read_input_prompt(service.card, body, options.input_type)
    query = EmbedQuery(
        inputs=texts,
        truncate=body.truncate != "NONE",
        side="left" if body.truncate == "START" else "right",
        max_length=body.max_tokens,
        prompt_name=prompt.name,
        prompt=prompt.text,
        normalize=True,
        dimensions=body.output_dimension,
        vector_space=options.vector_space,
        timeout=options.timeout,
        role=prompt.role,
    )
    embedded = await service.embed(query)
    members = [
        b'"%b":%b' % (kind.encode(), await write_rows(embedded.dense, _WRITERS[kind]))
        for kind in dict.fromkeys(body.embedding_types or ["float"])
    ]
    meta = CohereMeta(
        api_version=CohereVersion(version="2"),
        billed_units=CohereUnits(input_tokens=embedded.usage.tokens),
    )
    content = b'{"id":%b,"embeddings":{%b},"texts":%b,"meta":%b,"response_type":"embeddings_by_type"}' % (
        orjson.dumps(context.request_id),
        b",".join(members),
        orjson.dumps(texts),
        to_json(meta),
    )
    return build_result_response(request, service, content, embedded.usage)


def _read_texts(body: CohereEmbedRequest) -> list[str]:
    if body.images:
        raise InvalidInput("images cannot be embedded: the model takes text")
    if (body.texts is None) == (body.inputs is None):
        raise WrongShape("give either `texts` or `inputs`")
    if body.inputs is None:
        return body.texts or []
    texts = []
    for index, item in enumerate(body.inputs):
        if any(part.type != "text" or part.text is None for part in item.content):
            raise InvalidInput(f"input {index}: only content of type text can be embedded")
        texts.append(" ".join(part.text or "" for part in item.content))
    return texts
