"""`tei.v1`: the gRPC API of Text Embeddings Inference. One text a message; what is not set is false, as in TEI."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from types import MappingProxyType

import numpy as np

from embedserve_runtime.api.common import note_inputs
from embedserve_runtime.api.tei import byte_offsets
from embedserve_runtime.errors import EmptyInput, InvalidInput
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.heads.description import ClassifierHead
from embedserve_runtime.results import Output
from embedserve_runtime.rpc import wire
from embedserve_runtime.rpc.calls import Answered, Call, Desk, Methods
from embedserve_runtime.rpc.generated import tei_pb2 as pb
from embedserve_runtime.rpc.wire import given
from embedserve_runtime.service import TOKENIZER_THREADS, Effort, EmbedQuery, Pair, ScoreQuery, rank
from embedserve_runtime.tokenizing import Side, Token

VERSION = version("embedserve-runtime")
# Messages of a stream that are worked on at a time: TEI's bound, and less for answers that can be large.
WIDE, MEDIUM, NARROW = 1024, 128, 8
# Answers larger than this are written in a thread.
INLINE_VALUES = 131_072


async def info(call: Call, _: pb.InfoRequest) -> Answered[pb.InfoResponse]:
    service = call.service
    card, limits = service.card, service.dispatcher.limits
    return Answered(
        pb.InfoResponse(
            version=VERSION,
            model_id=card.source,
            model_sha=card.revision,
            model_dtype=service.engines[0].precision,
            model_type=_model_type(card),
            max_concurrent_requests=limits.queue_inputs,
            max_input_length=service.max_length,
            max_batch_tokens=limits.batch_tokens,
            max_client_batch_size=service.batching.max_client_batch_size or limits.queue_inputs,
            tokenization_workers=TOKENIZER_THREADS,
        )
    )


async def embed(call: Call, request: pb.EmbedRequest) -> Answered[pb.EmbedResponse]:
    query = EmbedQuery(
        inputs=[request.inputs],
        truncate=request.truncate,
        side=_side(request.truncation_direction),
        prompt_name=given(request, "prompt_name"),
        normalize=given(request, "normalize") is not False,
        dimensions=given(request, "dimensions"),
        vector_space=call.terms.vector_space,
        timeout=call.terms.timeout,
    )
    note_inputs(call.exchange, 1, is_batch=False)
    embedded = await call.service.embed(query)
    message = pb.EmbedResponse(metadata=_metadata(embedded.effort))
    message.MergeFromString(wire.floats(pb.EmbedResponse.EMBEDDINGS_FIELD_NUMBER, embedded.dense[0]))
    return Answered(message, embedded.effort)


async def embed_sparse(call: Call, request: pb.EmbedSparseRequest) -> Answered[pb.EmbedSparseResponse]:
    embedded = await call.service.embed(_tokens_query(call, request, Output.SPARSE))
    (vector,) = embedded.sparse
    entries = [
        pb.SparseValue(index=index, value=value)
        for index, value in zip(vector.indices.tolist(), vector.values.tolist(), strict=True)
    ]
    message = pb.EmbedSparseResponse(sparse_embeddings=entries, metadata=_metadata(embedded.effort))
    return Answered(message, embedded.effort)


async def embed_all(call: Call, request: pb.EmbedAllRequest) -> Answered[pb.EmbedAllResponse]:
    embedded = await call.service.embed(_tokens_query(call, request, Output.HIDDEN))
    (states,) = embedded.hidden
    message = pb.EmbedAllResponse(metadata=_metadata(embedded.effort))

    def write() -> None:
        field = pb.EmbedAllResponse.TOKEN_EMBEDDINGS_FIELD_NUMBER
        message.MergeFromString(wire.rows_of_floats(field, states))

    if states.size <= INLINE_VALUES:
        write()
    else:
        await asyncio.to_thread(write)
    return Answered(message, embedded.effort)


async def predict(call: Call, request: pb.PredictRequest) -> Answered[pb.PredictResponse]:
    return await _predict(call, request, request.inputs)


async def predict_pair(call: Call, request: pb.PredictPairRequest) -> Answered[pb.PredictResponse]:
    match list(request.inputs):
        case [text]:
            return await _predict(call, request, text)
        case [first, second]:
            return await _predict(call, request, Pair(first, second))
        case others:
            raise InvalidInput(f"`inputs` takes one text or two, got {len(others)}")


async def _predict(
    call: Call, request: pb.PredictRequest | pb.PredictPairRequest, item: str | Pair
) -> Answered[pb.PredictResponse]:
    query = ScoreQuery(
        [item],
        raw=request.raw_scores,
        truncate=request.truncate,
        side=_side(request.truncation_direction),
        vector_space=call.terms.vector_space,
        timeout=call.terms.timeout,
    )
    note_inputs(call.exchange, 1, is_batch=False)
    scored = await call.service.score(query)
    row = scored.scores[0]
    predictions = [
        pb.Prediction(score=float(row[column]), label=scored.labels[column])
        for column in np.argsort(-row, kind="stable").tolist()
    ]
    message = pb.PredictResponse(predictions=predictions, metadata=_metadata(scored.effort))
    return Answered(message, scored.effort)


async def rerank(call: Call, request: pb.RerankRequest) -> Answered[pb.RerankResponse]:
    if not request.texts:
        raise EmptyInput("`texts` cannot be empty")
    pairs = [Pair(request.query, text) for text in request.texts]
    return await _rerank(call, request, pairs)


async def rerank_stream(
    call: Call, requests: Sequence[pb.RerankStreamRequest]
) -> Answered[pb.RerankResponse]:
    """Scores raw and texts returned if the first message says so, as in TEI."""
    if not requests:
        raise EmptyInput("a stream to rerank needs one message at least")
    first = requests[0]
    cut = (first.truncate, first.truncation_direction)
    if any((one.truncate, one.truncation_direction) != cut for one in requests):
        raise InvalidInput(
            "`truncate` and `truncation_direction` must be the same in all messages of a stream"
        )
    return await _rerank(call, first, [Pair(one.query, one.text) for one in requests])


async def _rerank(
    call: Call, request: pb.RerankRequest | pb.RerankStreamRequest, pairs: Sequence[Pair]
) -> Answered[pb.RerankResponse]:
    query = ScoreQuery(
        pairs,
        ranks=True,
        raw=request.raw_scores,
        truncate=request.truncate,
        side=_side(request.truncation_direction),
        vector_space=call.terms.vector_space,
        timeout=call.terms.timeout,
    )
    note_inputs(call.exchange, len(pairs), is_batch=True)
    scored = await rank(call.service, query)
    ranks = [
        pb.Rank(
            index=place,
            text=pairs[place].second if request.return_text else None,
            score=float(scored.scores[place, 0]),
        )
        for place in scored.ranking().tolist()
    ]
    return Answered(pb.RerankResponse(ranks=ranks, metadata=_metadata(scored.effort)), scored.effort)


async def tokenize(call: Call, request: pb.EncodeRequest) -> Answered[pb.EncodeResponse]:
    text, name = request.inputs, given(request, "prompt_name")
    note_inputs(call.exchange, 1, is_batch=False)
    query = EmbedQuery([text], prompt_name=name)
    (tokens,) = await call.service.tokenize(query, add_special_tokens=request.add_special_tokens)
    return Answered(await asyncio.to_thread(_tokens, call.service.prompt_of(query) + text, tokens))


async def decode(call: Call, request: pb.DecodeRequest) -> Answered[pb.DecodeResponse]:
    note_inputs(call.exchange, 1, is_batch=False)
    (text,) = await call.service.decode(
        [list(request.ids)], None, skip_special_tokens=request.skip_special_tokens
    )
    return Answered(pb.DecodeResponse(text=text))


def _tokens_query(
    call: Call, request: pb.EmbedSparseRequest | pb.EmbedAllRequest, outputs: Output
) -> EmbedQuery:
    note_inputs(call.exchange, 1, is_batch=False)
    return EmbedQuery(
        inputs=[request.inputs],
        truncate=request.truncate,
        side=_side(request.truncation_direction),
        prompt_name=given(request, "prompt_name"),
        vector_space=call.terms.vector_space,
        timeout=call.terms.timeout,
        outputs=outputs,
    )


def _side(direction: pb.TruncationDirection) -> Side:
    return "left" if direction == pb.TRUNCATION_DIRECTION_LEFT else "right"


def _model_type(card: ModelCard) -> pb.ModelType:
    if not isinstance(card.head, ClassifierHead):
        return pb.MODEL_TYPE_EMBEDDING
    return pb.MODEL_TYPE_RERANKER if len(card.head.labels) == 1 else pb.MODEL_TYPE_CLASSIFIER


def _metadata(effort: Effort) -> pb.Metadata:
    timings = effort.timings
    return pb.Metadata(
        compute_chars=effort.characters,
        compute_tokens=effort.tokens,
        total_time_ns=_nanoseconds(timings.total),
        tokenization_time_ns=_nanoseconds(timings.tokenize),
        queue_time_ns=_nanoseconds(timings.queue),
        inference_time_ns=_nanoseconds(timings.engine),
    )


def _nanoseconds(seconds: float) -> int:
    return max(0, round(seconds * 1e9))


def _tokens(text: str, tokens: Sequence[Token]) -> pb.EncodeResponse:
    """Places in UTF-8 bytes; special tokens have none."""
    offsets = byte_offsets(text)
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


def _info_methods(desk: Desk) -> Methods:
    return {"Info": desk.unary(pb.InfoRequest, info)}


def _embed_methods(desk: Desk) -> Methods:
    return {
        "Embed": desk.unary(pb.EmbedRequest, embed),
        "EmbedStream": desk.stream(pb.EmbedRequest, embed, WIDE),
        "EmbedSparse": desk.unary(pb.EmbedSparseRequest, embed_sparse),
        "EmbedSparseStream": desk.stream(pb.EmbedSparseRequest, embed_sparse, MEDIUM),
        "EmbedAll": desk.unary(pb.EmbedAllRequest, embed_all),
        "EmbedAllStream": desk.stream(pb.EmbedAllRequest, embed_all, NARROW),
    }


def _predict_methods(desk: Desk) -> Methods:
    return {
        "Predict": desk.unary(pb.PredictRequest, predict),
        "PredictPair": desk.unary(pb.PredictPairRequest, predict_pair),
        "PredictStream": desk.stream(pb.PredictRequest, predict, WIDE),
        "PredictPairStream": desk.stream(pb.PredictPairRequest, predict_pair, WIDE),
    }


def _rerank_methods(desk: Desk) -> Methods:
    return {
        "Rerank": desk.unary(pb.RerankRequest, rerank),
        "RerankStream": desk.collected(pb.RerankStreamRequest, rerank_stream),
    }


def _tokenize_methods(desk: Desk) -> Methods:
    return {
        "Tokenize": desk.unary(pb.EncodeRequest, tokenize),
        "TokenizeStream": desk.stream(pb.EncodeRequest, tokenize, NARROW),
        "Decode": desk.unary(pb.DecodeRequest, decode),
        "DecodeStream": desk.stream(pb.DecodeRequest, decode, NARROW),
    }


SERVICES: Mapping[str, Callable[[Desk], Methods]] = MappingProxyType(
    {
        "tei.v1.Info": _info_methods,
        "tei.v1.Embed": _embed_methods,
        "tei.v1.Predict": _predict_methods,
        "tei.v1.Rerank": _rerank_methods,
        "tei.v1.Tokenize": _tokenize_methods,
    }
)
