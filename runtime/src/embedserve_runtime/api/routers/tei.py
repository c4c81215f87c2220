"""Serves the routes of Text Embeddings Inference; those of another kind of model answer 424."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib.metadata import version

import numpy as np
import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from embedserve_runtime.api.context import get_context, get_server_context, get_service
from embedserve_runtime.api.encoding import write_matrices, write_number_arrays
from embedserve_runtime.api.input_types import INPUT_TYPES, InputTypeName, read_input_prompt, select_service
from embedserve_runtime.api.inputs import (
    merge_aliases,
    read_ids,
    read_request_options,
    read_texts,
    record_inputs,
    truncation_side,
)
from embedserve_runtime.api.json_route import JsonRoute
from embedserve_runtime.api.responses import BytesResponse, build_result_response, space_headers
from embedserve_runtime.api.routers.error_docs import error_responses
from embedserve_runtime.api.routers.tei_tasks import (
    build_embed_task,
    build_predict_task,
    build_sparse_task,
    build_tokens_query,
    run_task,
)
from embedserve_runtime.api.schemas.base import to_json
from embedserve_runtime.api.schemas.known_fields import refuse_foreign_fields
from embedserve_runtime.api.schemas.tei import (
    DecodeRequest,
    EmbeddingModelType,
    EmbedRequest,
    EmbedTokensRequest,
    EngineInfo,
    ErrorResponse,
    InfoResponse,
    LabelsModelType,
    MemoryInfo,
    ModelType,
    ParityInfo,
    PredictItem,
    PredictRequest,
    SimilarityParameters,
    SimilarityRequest,
    SparseItem,
    TokenItem,
    TokenizeRequest,
)
from embedserve_runtime.errors import EmptyInput
from embedserve_runtime.forward.engine import EngineDescription, MeasuredParity
from embedserve_runtime.forward.outputs import OutputKind
from embedserve_runtime.heads.similarity import compute_cosine_similarities
from embedserve_runtime.memory.fitting import MemoryFit
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.heads.description import ClassifierHead, MultiVectorHead, SparseHead
from embedserve_runtime.service import TOKENIZER_THREADS, EmbedQuery
from embedserve_runtime.tokenizing import Token

VERSION = version("embedserve-runtime")
_TEI_POOLING = {"last": "last_token"}
"""Poolings that TEI calls by another name."""

router = APIRouter(route_class=JsonRoute, tags=["TEI"], responses=error_responses(ErrorResponse))


@router.post("/embed", summary="Vectors of one or more inputs", response_model=list[list[float]])
async def embed(request: Request, body: EmbedRequest) -> Response:
    return await run_task(request, build_embed_task(get_context(request), get_service(request), body))


@router.post("/embed_sparse", summary="Sparse vectors", response_model=list[list[SparseItem]])
async def embed_sparse(request: Request, body: EmbedTokensRequest) -> Response:
    return await run_task(request, build_sparse_task(get_context(request), get_service(request), body))


@router.post(
    "/predict",
    summary="Labels with their scores; a list of lists for a batch",
    response_model=list[PredictItem] | list[list[PredictItem]],
)
async def predict(request: Request, body: PredictRequest) -> Response:
    return await run_task(request, build_predict_task(get_context(request), body))


@router.post(
    "/embed_all",
    summary="Hidden states of every token, not normalized",
    response_model=list[list[list[float]]],
)
async def embed_all(request: Request, body: EmbedTokensRequest) -> Response:
    """Return the encoder's last hidden states: special tokens included, not normalized, no dense modules."""
    service, query = build_tokens_query(get_context(request), get_service(request), body, OutputKind.HIDDEN)
    embedded = await service.embed(query)
    matrices = await write_matrices(embedded.hidden)
    return build_result_response(request, service, b"[" + matrices + b"]", embedded.usage)


@router.post("/similarity", summary="Cosine similarities of sentences to one", response_model=list[float])
async def similarity(request: Request, body: SimilarityRequest) -> Response:
    return await answer_similarity(request, body)


async def answer_similarity(request: Request, body: SimilarityRequest) -> Response:
    """Answer with the cosines of sentences to one sentence. Raises any RequestError."""
    service, context = get_service(request), get_context(request)
    sentences = body.inputs.sentences
    if not sentences:
        raise EmptyInput("`sentences` cannot be empty")
    record_inputs(context, len(sentences) + 1, is_batch=True)
    parameters = _merge_parameters(body)
    options = read_request_options(context, parameters.model)
    service = select_service(service, parameters, options.input_type)
    prompt = read_input_prompt(service.card, parameters, options.input_type)
    query = EmbedQuery(
        inputs=[body.inputs.source_sentence, *sentences],
        truncate=parameters.truncate,
        side=truncation_side(parameters.truncation_direction),
        prompt_name=prompt.name,
        prompt=prompt.text,
        role=prompt.role,
        vector_space=options.vector_space,
        timeout=options.timeout,
    )
    embedded = await service.embed(query)
    scores = compute_cosine_similarities(embedded.dense[0], embedded.dense[1:])
    return build_result_response(request, service, write_number_arrays(scores, 0), embedded.usage)


def _merge_parameters(body: SimilarityRequest) -> SimilarityParameters:
    """Return the fields that say how texts are embedded, which a body has in two places. Raises InvalidInput where they
    differ."""
    inner = body.parameters or SimilarityParameters()
    refuse_foreign_fields(inner, "parameters.")
    merged = {
        name: merge_aliases(**{name: getattr(body, name), f"parameters.{name}": getattr(inner, name)})
        for name in SimilarityParameters.model_fields
    }
    return SimilarityParameters.model_validate(merged)


@router.post("/tokenize", summary="Tokens of texts, with their places", response_model=list[list[TokenItem]])
async def tokenize(request: Request, body: TokenizeRequest) -> Response:
    options = read_request_options(get_context(request), body.model)
    service = select_service(get_service(request), body, options.input_type)
    texts = read_texts(get_context(request), body.inputs)
    prompt = read_input_prompt(service.card, body, options.input_type)
    query = EmbedQuery(
        texts,
        prompt_name=prompt.name,
        prompt=prompt.text,
        role=prompt.role,
        timeout=options.timeout,
    )
    tokenized = await service.tokenize(query, add_special_tokens=body.add_special_tokens is not False)
    content = await asyncio.to_thread(_write_tokens, texts, service.resolve_prompt(query), tokenized)
    return BytesResponse(content)


@router.post("/decode", summary="Texts of token ids", response_model=list[str])
async def decode(request: Request, body: DecodeRequest) -> Response:
    service = get_service(request)
    sequences = read_ids(body.ids, "ids")
    record_inputs(get_context(request), len(sequences), is_batch=sequences[:1] != [body.ids])
    options = read_request_options(get_context(request), body.model)
    input_type: InputTypeName | None = merge_aliases(input_type=body.input_type, model=options.input_type)
    role = None if input_type is None else INPUT_TYPES[input_type].role
    query = EmbedQuery(sequences, role=role, timeout=options.timeout)
    texts = await service.decode(query, skip_special_tokens=body.skip_special_tokens is not False)
    return BytesResponse(orjson.dumps(texts))


@router.get(
    "/info",
    summary="What is served and within which limits",
    response_model=InfoResponse,
    responses=error_responses(ErrorResponse, 401, 503),
)
async def info(request: Request) -> Response:
    service, server = get_service(request), get_server_context(request)
    card, batching = service.card, service.batching
    limits = service.dispatcher.limits
    content = InfoResponse(
        model_id=card.source,
        model_sha=card.revision,
        model_dtype=service.engines[0].precision,
        served_model_name=server.model_name,
        model_type=_describe_model_type(card),
        max_concurrent_requests=limits.queue_inputs,
        max_input_length=service.max_length,
        max_batch_tokens=limits.batch_tokens,
        max_batch_requests=None,
        max_client_batch_size=batching.max_client_batch_size or limits.queue_inputs,
        auto_truncate=batching.auto_truncate,
        tokenization_workers=TOKENIZER_THREADS,
        version=VERSION,
        vector_space=card.vector_space,
        compute=service.engines[0].compute_precision,
        parity=_describe_parity(service.engines[0].served_parity),
        dimensions=card.pipeline.dimensions,
        full_dimensions=card.pipeline.full_dimensions,
        normalize=card.pipeline.normalize,
        prompts=list(card.prompts),
        default_prompt=card.default_prompt,
        adapter_task=card.adapter_task,
        adapter_tasks=list(card.adapter_tasks),
        vector_spaces=dict(card.task_spaces),
        engine=_describe_engines(service.engines),
        http_workers=server.http_workers,
        memory=_describe_memory(service.memory),
    )
    return BytesResponse(to_json(content), headers=space_headers(service))


def _describe_memory(memory: MemoryFit | None) -> MemoryInfo | None:
    if memory is None:
        return None
    return MemoryInfo(limit_bytes=memory.limit, planned_bytes=memory.planned, lowered=list(memory.lowered))


def _describe_engines(engines: Sequence[EngineDescription]) -> EngineInfo:
    """Describe the engines, which are all of one kind."""
    first = engines[0]
    return EngineInfo(
        kind=first.kind,
        devices=[engine.device for engine in engines],
        precision=first.precision,
        attention=first.attention,
        threads=first.threads,
        max_sequences=first.max_sequences,
    )


def _describe_parity(parity: MeasuredParity | None) -> ParityInfo | None:
    if parity is None:
        return None
    return ParityInfo(
        reference=parity.reference,
        mean_cosine=parity.mean_cosine,
        min_cosine=parity.min_cosine,
        texts=parity.texts,
    )


def _describe_model_type(card: ModelCard) -> ModelType:
    match card.head:
        case ClassifierHead() as head:
            labels = LabelsModelType(
                id2label={str(number): label for number, label in enumerate(head.labels)},
                label2id={label: number for number, label in enumerate(head.labels)},
            )
            return ModelType(reranker=labels) if len(head.labels) == 1 else ModelType(classifier=labels)
        case SparseHead():
            return ModelType(embedding=EmbeddingModelType(pooling="splade"))
        case MultiVectorHead():
            return ModelType(embedding=EmbeddingModelType(pooling="multi_vector"))
        case None:
            pooling = card.pipeline.pooling_name
            return ModelType(embedding=EmbeddingModelType(pooling=_TEI_POOLING.get(pooling, pooling)))


def _write_tokens(texts: list[str], prompt: str, tokenized: list[list[Token]]) -> bytes:
    lists = []
    for text, tokens in zip(texts, tokenized, strict=True):
        offsets = compute_byte_offsets(prompt + text)
        lists.append([_write_token(token, offsets) for token in tokens])
    return orjson.dumps(lists)


def _write_token(token: Token, offsets: Sequence[int]) -> dict[str, int | str | bool | None]:
    """Return a token as `TokenItem` documents it: instances of it for a million tokens would take seconds."""
    if token.start is None or token.stop is None:
        return {"id": token.id, "text": token.text, "special": token.special, "start": None, "stop": None}
    start, stop = offsets[token.start], offsets[token.stop]
    return {"id": token.id, "text": token.text, "special": False, "start": start, "stop": stop}


def compute_byte_offsets(text: str) -> list[int] | range:
    """Return the UTF-8 byte offset of each code point of a text, and of its end."""
    if text.isascii():
        return range(len(text) + 1)
    points = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    widths = 1 + (points >= 0x80).astype(np.int64) + (points >= 0x800) + (points >= 0x10000)
    return [0, *np.cumsum(widths).tolist()]
