"""Serves `tei.v1`, the gRPC API of Text Embeddings Inference: one text in each message; unset fields are false."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from types import MappingProxyType

from embedserve_runtime.api.input_types import TypedFields
from embedserve_runtime.api.inputs import record_inputs
from embedserve_runtime.api.routers.tei import compute_byte_offsets
from embedserve_runtime.errors import EmptyInput, InvalidInput
from embedserve_runtime.forward.outputs import OutputKind
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.heads.description import ClassifierHead
from embedserve_runtime.rpc import protobuf_fields
from embedserve_runtime.rpc.generated import tei_pb2 as pb
from embedserve_runtime.rpc.handlers import MessageContext, MethodHandlers, Methods, Response
from embedserve_runtime.rpc.protobuf_fields import optional_field
from embedserve_runtime.service import TOKENIZER_THREADS, EmbedQuery, Pair, RequestUsage, ScoreQuery, rank
from embedserve_runtime.tokenizing import Side, Token

VERSION = version("embedserve-runtime")
# Messages of a stream that are processed concurrently: TEI's bound, and less for answers that can be large.
WIDE_WINDOW, MEDIUM_WINDOW, NARROW_WINDOW = 1024, 128, 8
# Answers larger than this are written in a thread.
MAX_INLINE_VALUES = 131_072


async def info(context: MessageContext, _: pb.InfoRequest) -> Response[pb.InfoResponse]:
    service = context.service
    card, limits = service.card, service.dispatcher.limits
    return Response(
        pb.InfoResponse(
            version=VERSION,
            model_id=card.source,
            model_sha=card.revision,
            model_dtype=service.engines[0].precision,
            model_type=_find_model_type(card),
            max_concurrent_requests=limits.queue_inputs,
            max_input_length=service.max_length,
            max_batch_tokens=limits.batch_tokens,
            max_client_batch_size=service.batching.max_client_batch_size or limits.queue_inputs,
            tokenization_workers=TOKENIZER_THREADS,
        )
    )


async def embed(context: MessageContext, request: pb.EmbedRequest) -> Response[pb.EmbedResponse]:
    context = _for_task(context, request)
    query = EmbedQuery(
        inputs=[request.inputs],
        truncate=request.truncate,
        side=_truncation_side(request.truncation_direction),
        prompt_name=optional_field(request, "prompt_name"),
        normalize=optional_field(request, "normalize") is not False,
        dimensions=optional_field(request, "dimensions"),
        vector_space=context.options.vector_space,
        timeout=context.options.timeout,
    )
    record_inputs(context.request, 1, is_batch=False)
    embedded = await context.service.embed(query)
    message = pb.EmbedResponse(metadata=_build_metadata(embedded.usage))
    message.MergeFromString(
        protobuf_fields.encode_floats(pb.EmbedResponse.EMBEDDINGS_FIELD_NUMBER, embedded.dense[0])
    )
    return Response(message, embedded.usage, context.service)


async def embed_sparse(
    context: MessageContext, request: pb.EmbedSparseRequest
) -> Response[pb.EmbedSparseResponse]:
    context = _for_task(context, request)
    embedded = await context.service.embed(_build_tokens_query(context, request, OutputKind.SPARSE))
    (vector,) = embedded.sparse
    entries = [
        pb.SparseValue(index=index, value=value)
        for index, value in zip(vector.indices.tolist(), vector.values.tolist(), strict=True)
    ]
    message = pb.EmbedSparseResponse(sparse_embeddings=entries, metadata=_build_metadata(embedded.usage))
    return Response(message, embedded.usage, context.service)


async def embed_all(context: MessageContext, request: pb.EmbedAllRequest) -> Response[pb.EmbedAllResponse]:
    context = _for_task(context, request)
    embedded = await context.service.embed(_build_tokens_query(context, request, OutputKind.HIDDEN))
    (states,) = embedded.hidden
    message = pb.EmbedAllResponse(metadata=_build_metadata(embedded.usage))

    def write() -> None:
        field = pb.EmbedAllResponse.TOKEN_EMBEDDINGS_FIELD_NUMBER
        message.MergeFromString(protobuf_fields.encode_float_rows(field, states))

    if states.size <= MAX_INLINE_VALUES:
        write()
    else:
        await asyncio.to_thread(write)
    return Response(message, embedded.usage, context.service)


async def predict(context: MessageContext, request: pb.PredictRequest) -> Response[pb.PredictResponse]:
    return await _predict(context, request, request.inputs)


async def predict_pair(
    context: MessageContext, request: pb.PredictPairRequest
) -> Response[pb.PredictResponse]:
    match list(request.inputs):
        case [text]:
            return await _predict(context, request, text)
        case [first, second]:
            return await _predict(context, request, Pair(first, second))
        case inputs:
            raise InvalidInput(f"`inputs` takes one text or two, got {len(inputs)}")


async def _predict(
    context: MessageContext, request: pb.PredictRequest | pb.PredictPairRequest, item: str | Pair
) -> Response[pb.PredictResponse]:
    query = ScoreQuery(
        [item],
        raw=request.raw_scores,
        truncate=request.truncate,
        side=_truncation_side(request.truncation_direction),
        vector_space=context.options.vector_space,
        timeout=context.options.timeout,
    )
    record_inputs(context.request, 1, is_batch=False)
    scored = await context.service.score(query)
    row = scored.scores[0]
    predictions = [
        pb.Prediction(score=float(row[column]), label=scored.labels[column])
        for column in scored.rank_labels()[0].tolist()
    ]
    message = pb.PredictResponse(predictions=predictions, metadata=_build_metadata(scored.usage))
    return Response(message, scored.usage)


async def rerank(context: MessageContext, request: pb.RerankRequest) -> Response[pb.RerankResponse]:
    if not request.texts:
        raise EmptyInput("`texts` cannot be empty")
    pairs = [Pair(request.query, text) for text in request.texts]
    return await _rerank(context, request, pairs)


async def rerank_stream(
    context: MessageContext, requests: Sequence[pb.RerankStreamRequest]
) -> Response[pb.RerankResponse]:
    """Rerank a stream of pairs. The first message decides about raw scores and returned texts, as in TEI."""
    if not requests:
        raise EmptyInput("a stream to rerank needs one message at least")
    first = requests[0]
    cut = (first.truncate, first.truncation_direction)
    if any((each.truncate, each.truncation_direction) != cut for each in requests):
        raise InvalidInput(
            "`truncate` and `truncation_direction` must be the same in all messages of a stream"
        )
    return await _rerank(context, first, [Pair(each.query, each.text) for each in requests])


async def _rerank(
    context: MessageContext, request: pb.RerankRequest | pb.RerankStreamRequest, pairs: Sequence[Pair]
) -> Response[pb.RerankResponse]:
    query = ScoreQuery(
        pairs,
        ranks=True,
        raw=request.raw_scores,
        truncate=request.truncate,
        side=_truncation_side(request.truncation_direction),
        vector_space=context.options.vector_space,
        timeout=context.options.timeout,
    )
    record_inputs(context.request, len(pairs), is_batch=True)
    scored = await rank(context.service, query)
    ranks = [
        pb.Rank(
            index=index,
            text=pairs[index].second if request.return_text else None,
            score=float(scored.scores[index, 0]),
        )
        for index in scored.rank_items().tolist()
    ]
    return Response(pb.RerankResponse(ranks=ranks, metadata=_build_metadata(scored.usage)), scored.usage)


async def tokenize(context: MessageContext, request: pb.EncodeRequest) -> Response[pb.EncodeResponse]:
    context = _for_task(context, request)
    text, name = request.inputs, optional_field(request, "prompt_name")
    record_inputs(context.request, 1, is_batch=False)
    query = EmbedQuery([text], prompt_name=name, timeout=context.options.timeout)
    (tokens,) = await context.service.tokenize(query, add_special_tokens=request.add_special_tokens)
    return Response(
        await asyncio.to_thread(_build_tokens, context.service.resolve_prompt(query) + text, tokens)
    )


async def decode(context: MessageContext, request: pb.DecodeRequest) -> Response[pb.DecodeResponse]:
    record_inputs(context.request, 1, is_batch=False)
    query = EmbedQuery([list(request.ids)], timeout=context.options.timeout)
    (text,) = await context.service.decode(query, skip_special_tokens=request.skip_special_tokens)
    return Response(pb.DecodeResponse(text=text))


def _for_task(
    context: MessageContext,
    request: pb.EmbedRequest | pb.EmbedSparseRequest | pb.EmbedAllRequest | pb.EncodeRequest,
) -> MessageContext:
    """Choose the task that alone has the prompt of that name; TEI's messages have no other word for it."""
    return context.for_task(TypedFields(prompt_name=optional_field(request, "prompt_name")))


def _build_tokens_query(
    context: MessageContext, request: pb.EmbedSparseRequest | pb.EmbedAllRequest, outputs: OutputKind
) -> EmbedQuery:
    record_inputs(context.request, 1, is_batch=False)
    return EmbedQuery(
        inputs=[request.inputs],
        truncate=request.truncate,
        side=_truncation_side(request.truncation_direction),
        prompt_name=optional_field(request, "prompt_name"),
        vector_space=context.options.vector_space,
        timeout=context.options.timeout,
        outputs=outputs,
    )


def _truncation_side(direction: pb.TruncationDirection) -> Side:
    return "left" if direction == pb.TRUNCATION_DIRECTION_LEFT else "right"


def _find_model_type(card: ModelCard) -> pb.ModelType:
    if not isinstance(card.head, ClassifierHead):
        return pb.MODEL_TYPE_EMBEDDING
    return pb.MODEL_TYPE_RERANKER if len(card.head.labels) == 1 else pb.MODEL_TYPE_CLASSIFIER


def _build_metadata(usage: RequestUsage) -> pb.Metadata:
    timings = usage.timings
    return pb.Metadata(
        compute_chars=usage.characters,
        compute_tokens=usage.tokens,
        total_time_ns=_to_nanoseconds(timings.total),
        tokenization_time_ns=_to_nanoseconds(timings.tokenize),
        queue_time_ns=_to_nanoseconds(timings.queue),
        inference_time_ns=_to_nanoseconds(timings.engine),
    )


def _to_nanoseconds(seconds: float) -> int:
    return max(0, round(seconds * 1e9))


def _build_tokens(text: str, tokens: Sequence[Token]) -> pb.EncodeResponse:
    """List tokens with their offsets in UTF-8 bytes; special tokens have none."""
    offsets = compute_byte_offsets(text)
    return pb.EncodeResponse(
        tokens=[
            pb.SimpleToken(id=token.id, text=token.text, special=token.special)
            if token.start is None or token.stop is None
            else pb.SimpleToken(
                id=token.id, text=token.text, start=offsets[token.start], stop=offsets[token.stop]
            )
            for token in tokens
        ]
    )


def _build_info_methods(handlers: MethodHandlers) -> Methods:
    return {"Info": handlers.unary(pb.InfoRequest, info)}


def _build_embed_methods(handlers: MethodHandlers) -> Methods:
    return {
        "Embed": handlers.unary(pb.EmbedRequest, embed),
        "EmbedStream": handlers.bidirectional(pb.EmbedRequest, embed, WIDE_WINDOW),
        "EmbedSparse": handlers.unary(pb.EmbedSparseRequest, embed_sparse),
        "EmbedSparseStream": handlers.bidirectional(pb.EmbedSparseRequest, embed_sparse, MEDIUM_WINDOW),
        "EmbedAll": handlers.unary(pb.EmbedAllRequest, embed_all),
        "EmbedAllStream": handlers.bidirectional(pb.EmbedAllRequest, embed_all, NARROW_WINDOW),
    }


def _build_predict_methods(handlers: MethodHandlers) -> Methods:
    return {
        "Predict": handlers.unary(pb.PredictRequest, predict),
        "PredictPair": handlers.unary(pb.PredictPairRequest, predict_pair),
        "PredictStream": handlers.bidirectional(pb.PredictRequest, predict, WIDE_WINDOW),
        "PredictPairStream": handlers.bidirectional(pb.PredictPairRequest, predict_pair, WIDE_WINDOW),
    }


def _build_rerank_methods(handlers: MethodHandlers) -> Methods:
    return {
        "Rerank": handlers.unary(pb.RerankRequest, rerank),
        "RerankStream": handlers.client_stream(pb.RerankStreamRequest, rerank_stream),
    }


def _build_tokenize_methods(handlers: MethodHandlers) -> Methods:
    return {
        "Tokenize": handlers.unary(pb.EncodeRequest, tokenize),
        "TokenizeStream": handlers.bidirectional(pb.EncodeRequest, tokenize, NARROW_WINDOW),
        "Decode": handlers.unary(pb.DecodeRequest, decode),
        "DecodeStream": handlers.bidirectional(pb.DecodeRequest, decode, NARROW_WINDOW),
    }


SERVICES: Mapping[str, Callable[[MethodHandlers], Methods]] = MappingProxyType(
    {
        "tei.v1.Info": _build_info_methods,
        "tei.v1.Embed": _build_embed_methods,
        "tei.v1.Predict": _build_predict_methods,
        "tei.v1.Rerank": _build_rerank_methods,
        "tei.v1.Tokenize": _build_tokenize_methods,
    }
)
