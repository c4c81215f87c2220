"""Serves the native route `POST /v1/encode`: several outputs of one forward pass, in compact formats."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import islice

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from embedserve_runtime.api.context import get_context, get_server_context, get_service
from embedserve_runtime.api.embedding_options import TRUNCATES, ChunkedOverflow, read_chunked_overflow
from embedserve_runtime.api.input_types import read_input_prompt, select_service
from embedserve_runtime.api.inputs import merge_aliases, read_inputs, read_request_options, truncation_side
from embedserve_runtime.api.json_route import JsonRoute
from embedserve_runtime.api.native_response import (
    FLOAT_DTYPES,
    OutputFormat,
    check_chunks,
    resolve_format,
    write_results,
)
from embedserve_runtime.api.responses import (
    BytesResponse,
    build_result_headers,
    build_result_response,
    record_usage,
)
from embedserve_runtime.api.routers.error_docs import Responses, error_responses
from embedserve_runtime.api.schemas.messages import MessageErrorResponse
from embedserve_runtime.api.schemas.native import EncodeRequest, EncodeResponse
from embedserve_runtime.errors import InvalidInput, WrongModelKind
from embedserve_runtime.forward.outputs import OutputKind
from embedserve_runtime.heads.quantization import OutputDtype
from embedserve_runtime.service import (
    ChunkedResult,
    EmbedQuery,
    EmbedResult,
    InferenceService,
    average_chunks,
)
from embedserve_runtime.service.postprocessing import NO_ROWS
from embedserve_runtime.tokenizing import Input, Token

BYTES = b"application/octet-stream"
DTYPE = b"x-embedserve-dtype"
SHAPE = b"x-embedserve-shape"
OUTPUTS = {
    "dense": OutputKind.DENSE,
    "sparse": OutputKind.SPARSE,
    "multi_vector": OutputKind.MULTI_VECTOR,
    "hidden": OutputKind.HIDDEN,
}
_BINARY: Responses = {200: {"content": {BYTES.decode(): {"schema": {"type": "string", "format": "binary"}}}}}

router = APIRouter(
    route_class=JsonRoute, tags=["native"], responses={**error_responses(MessageErrorResponse), **_BINARY}
)


@router.post(
    "/v1/encode",
    summary="Vectors, tokens and hidden states from one forward pass",
    response_model=EncodeResponse,
)
async def encode(request: Request, body: EncodeRequest) -> Response:
    service, context = get_service(request), get_context(request)
    if service.other_tasks:
        service = select_service(service, body, read_request_options(context, body.model).input_type)
    as_bytes = BYTES in context.headers.get(b"accept", b"").lower()
    outputs = _requested_outputs(body, service)
    output_format = resolve_format(body, service)
    _check_outputs(body, outputs, output_format.output_dtype, as_bytes=as_bytes)
    query = _build_query(request, body, service, outputs)
    if (overflow := read_chunked_overflow(body.overflow, truncate=body.truncate)) is not None:
        _check_chunked(body, outputs, as_bytes=as_bytes)
        return await _answer_chunks(request, service, query, overflow, output_format)
    # Refuses too much text before the engine works for it.
    lists_tokens = body.outputs is not None and "tokens" in body.outputs
    tokens = await service.locate(query) if lists_tokens else None
    embedded = await service.embed(query)
    if as_bytes:
        return await _bytes_response(request, service, embedded, output_format)
    members = [
        *_write_head(request, service, output_format),
        b'"token_counts":' + orjson.dumps(list(embedded.usage.lengths)),
        *await write_results(output_format, outputs, service, embedded),
    ]
    if tokens is not None:
        prompt = service.resolve_prompt(query)
        listed = await asyncio.to_thread(_write_tokens, query.inputs, len(prompt), tokens)
        members.append(b'"tokens":' + listed)
    return build_result_response(request, service, b"{" + b",".join(members) + b"}", embedded.usage)


def _build_query(
    request: Request, body: EncodeRequest, service: InferenceService, outputs: OutputKind
) -> EmbedQuery:
    context = get_context(request)
    options = read_request_options(context, body.model)
    prompt = read_input_prompt(service.card, body, options.input_type)
    return EmbedQuery(
        inputs=read_inputs(context, body.inputs, "inputs"),
        truncate=merge_aliases(truncate=body.truncate, overflow=TRUNCATES.get(body.overflow or "")),
        side=truncation_side(body.truncation_direction),
        prompt_name=prompt.name,
        prompt=prompt.text,
        normalize=body.normalize,
        dimensions=body.dimensions,
        vector_space=options.vector_space,
        timeout=options.timeout,
        outputs=outputs,
        top_k=body.top_k,
        threshold=body.threshold or 0.0,
        role=prompt.role,
        spans=None
        if body.spans is None
        else [[(start, end) for start, end in spans] for spans in body.spans],
        pool_factor=body.pool_factor,
    )


def _requested_outputs(body: EncodeRequest, service: InferenceService) -> OutputKind:
    """Return the outputs to compute. A request for tokens only computes the model's main output. Spans are a result
    too."""
    outputs = OutputKind(0)
    for name in body.outputs or ():
        outputs |= OUTPUTS.get(name, OutputKind(0))
    return outputs if body.spans is not None else outputs or service.card.main_output


def _check_outputs(
    body: EncodeRequest, outputs: OutputKind, output_dtype: OutputDtype, *, as_bytes: bool
) -> None:
    if outputs is OutputKind.LOGITS:
        raise WrongModelKind("model gives scores and nothing to encode; use /rerank or /predict")
    if as_bytes and (
        outputs is not OutputKind.DENSE or "tokens" in (body.outputs or ()) or body.spans is not None
    ):
        raise InvalidInput(f"{BYTES.decode()} carries dense vectors only; accept JSON for other outputs")
    for name, value in (("sparse_tokens", body.sparse_tokens), ("sparse_map", body.sparse_map)):
        if value and OutputKind.SPARSE not in outputs:
            raise InvalidInput(f"`{name}` is for sparse vectors, which are not among the outputs")
    if outputs & (OutputKind.HIDDEN | OutputKind.MULTI_VECTOR) and output_dtype not in FLOAT_DTYPES:
        raise InvalidInput("hidden states and multi-vectors are written as float32 or float16")


def _check_chunked(body: EncodeRequest, outputs: OutputKind, *, as_bytes: bool) -> None:
    if (
        outputs is not OutputKind.DENSE
        or as_bytes
        or body.spans is not None
        or "tokens" in (body.outputs or ())
    ):
        raise InvalidInput(
            f"`overflow`: {body.overflow} gives dense vectors only, as JSON; leave other outputs out"
        )


async def _answer_chunks(
    request: Request,
    service: InferenceService,
    query: EmbedQuery,
    overflow: ChunkedOverflow,
    output_format: OutputFormat,
) -> Response:
    """Answer with the vectors of the inputs' chunks, or with their means. Raises any RequestError."""
    if overflow == "chunk":
        check_chunks(output_format.output_dtype, output_format.ranges)
    chunked = await service.embed_chunks(query)
    if overflow == "chunk-mean":
        chunked = average_chunks(service.card, query, chunked)
    dense = NO_ROWS if chunked.means is None else chunked.means
    chunks = chunked.vectors if chunked.means is None else ()
    embedded = EmbedResult(dense, chunked.usage, chunks=chunks)
    outputs = OutputKind(0) if chunked.means is None else OutputKind.DENSE
    members = [
        *_write_head(request, service, output_format),
        b'"token_counts":' + orjson.dumps(_count_tokens(chunked)),
        *await write_results(output_format, outputs, service, embedded),
        b'"chunk_spans":' + orjson.dumps(chunked.spans),
    ]
    return build_result_response(request, service, b"{" + b",".join(members) + b"}", chunked.usage)


def _count_tokens(chunked: ChunkedResult) -> list[int]:
    """Return how many tokens the chunks of each text have, prompt and special tokens included."""
    lengths = iter(chunked.usage.lengths)
    return [sum(islice(lengths, len(tokens))) for tokens in chunked.tokens]


def _write_head(request: Request, service: InferenceService, output_format: OutputFormat) -> list[bytes]:
    """Write the members that every answer begins with."""
    return [
        b'"model":' + orjson.dumps(get_server_context(request).model_name),
        b'"vector_space":' + orjson.dumps(service.card.vector_space),
        b'"dtype":' + orjson.dumps(output_format.output_dtype),
        b'"encoding":' + orjson.dumps(output_format.encoding),
    ]


async def _bytes_response(
    request: Request, service: InferenceService, embedded: EmbedResult, output_format: OutputFormat
) -> Response:
    rows = await asyncio.to_thread(output_format.quantize, embedded.dense)
    shape = ((DTYPE, output_format.output_dtype.encode()), (SHAPE, b"%d,%d" % rows.shape))
    record_usage(get_context(request).facts, embedded.usage)
    headers = (*build_result_headers(service, embedded.usage), *shape)
    return BytesResponse(rows.tobytes(), headers=headers, content_type=BYTES)


def _write_tokens(inputs: Sequence[Input], prompt_length: int, located: list[list[Token]]) -> bytes:
    return orjson.dumps(
        [
            [_write_token(token, prompt_length if isinstance(item, str) else 0) for token in tokens]
            for item, tokens in zip(inputs, located, strict=True)
        ]
    )


def _write_token(token: Token, prompt_length: int) -> dict[str, int | str | bool | None]:
    """Return a token as `EncodedToken` documents it: instances of it for a million tokens would take seconds."""
    start, stop = token.start, token.stop
    if start is None or stop is None or stop <= prompt_length:
        return {"id": token.id, "text": token.text, "special": token.special, "start": None, "end": None}
    start, stop = max(0, start - prompt_length), stop - prompt_length
    return {"id": token.id, "text": token.text, "special": False, "start": start, "end": stop}
