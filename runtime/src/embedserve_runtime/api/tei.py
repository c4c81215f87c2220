"""The dialect of Text Embeddings Inference: its routes over one model; 424 where the model is of another kind.

`tei_tasks` has what they do; `platforms` the routes that choose one of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import TypeVar

import msgspec
import numpy as np
from msgspec import Struct

from embedserve_runtime.api.asgi import Answer, Exchange
from embedserve_runtime.api.cohere import prompt_of_role
from embedserve_runtime.api.common import (
    note_inputs,
    read_ids,
    read_texts,
    result_lines,
    side_of,
    space_header,
    terms_of,
)
from embedserve_runtime.api.encoding import number_arrays, write_matrices
from embedserve_runtime.api.quick import Asked
from embedserve_runtime.api.schemas import (
    BodyDecoder,
    EmbedBody,
    EmbeddingModelType,
    EngineBody,
    InfoBody,
    LabelsModelType,
    ModelType,
)
from embedserve_runtime.api.tei_schemas import (
    DecodeBody,
    PredictBody,
    RerankBody,
    SimilarityBody,
    SimilarityParameters,
    TokenItem,
    TokenizeBody,
    TokensBody,
)
from embedserve_runtime.api.tei_tasks import (
    TeiTask,
    asked_embed,
    inputs_query,
    predict_task,
    rerank_task,
    sparse_task,
)
from embedserve_runtime.engines.base import EngineFacts
from embedserve_runtime.errors import EmptyInput
from embedserve_runtime.heads.similarity import cosines
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.heads.description import ClassifierHead, MultiVectorHead, SparseHead
from embedserve_runtime.readiness import Readiness
from embedserve_runtime.results import Output
from embedserve_runtime.service import TOKENIZER_THREADS, EmbedQuery
from embedserve_runtime.tokenizing import Token

B = TypeVar("B", bound=Struct)

VERSION = version("embedserve-runtime")

_decode_embed = BodyDecoder(EmbedBody)
_decode_tokens = BodyDecoder(TokensBody)
_decode_rerank = BodyDecoder(RerankBody)
_decode_predict = BodyDecoder(PredictBody)
_decode_similarity = BodyDecoder(SimilarityBody)
_decode_tokenize = BodyDecoder(TokenizeBody)
_decode_decode = BodyDecoder(DecodeBody)
# Where TEI calls a pooling by another name.
_TEI_POOLING = {"last": "last_token"}


def ask_embed(exchange: Exchange) -> Asked:
    """What `POST /embed` asks for. Raises any RequestError."""
    return asked_embed(exchange, _decode_embed(exchange))


class TeiRoutes:
    def __init__(self, readiness: Readiness, served_model_name: str, http_workers: int) -> None:
        self._readiness = readiness
        self._name = served_model_name
        self._http_workers = http_workers

    async def embed_sparse(self, exchange: Exchange) -> Answer:
        return await self._run(exchange, sparse_task, _decode_tokens)

    async def rerank(self, exchange: Exchange) -> Answer:
        return await self._run(exchange, rerank_task, _decode_rerank)

    async def predict(self, exchange: Exchange) -> Answer:
        return await self._run(exchange, predict_task, _decode_predict)

    async def _run(
        self, exchange: Exchange, task_of: Callable[[Exchange, B], TeiTask], decode: BodyDecoder[B]
    ) -> Answer:
        service = self._readiness.service()
        content, effort = await task_of(exchange, decode(exchange)).run(service)
        return Answer(content, lines=result_lines(exchange, service, effort))

    async def embed_all(self, exchange: Exchange) -> Answer:
        """The encoder's last hidden states: special tokens included, not normalised, no dense modules."""
        service = self._readiness.service()
        embedded = await service.embed(inputs_query(exchange, _decode_tokens(exchange), Output.HIDDEN))
        matrices = await write_matrices(embedded.hidden)
        return Answer(b"[" + matrices + b"]", lines=result_lines(exchange, service, embedded.effort))

    async def similarity(self, exchange: Exchange) -> Answer:
        service = self._readiness.service()
        body = _decode_similarity(exchange)
        sentences = body.inputs.sentences
        if not sentences:
            raise EmptyInput("`sentences` cannot be empty")
        note_inputs(exchange, len(sentences) + 1, is_batch=True)
        parameters = body.parameters or SimilarityParameters()
        terms = terms_of(exchange)
        query = EmbedQuery(
            inputs=[body.inputs.source_sentence, *sentences],
            truncate=parameters.truncate,
            side=side_of(parameters.truncation_direction),
            prompt_name=parameters.prompt_name,
            vector_space=terms.vector_space,
            timeout=terms.timeout,
        )
        embedded = await service.embed(query)
        scores = cosines(embedded.dense[0], embedded.dense[1:])
        return Answer(number_arrays(scores, 0), lines=result_lines(exchange, service, embedded.effort))

    async def tokenize(self, exchange: Exchange) -> Answer:
        service = self._readiness.service()
        body = _decode_tokenize(exchange)
        texts = read_texts(exchange, body.inputs)
        name, prompt = prompt_of_role(body.input_type, body.prompt_name, None, service.card)
        query = EmbedQuery(texts, prompt_name=name, prompt=prompt, role=body.input_type)
        tokenized = await service.tokenize(query, add_special_tokens=body.add_special_tokens)
        content = await asyncio.to_thread(_write_tokens, texts, service.prompt_of(query), tokenized)
        return Answer(content)

    async def decode(self, exchange: Exchange) -> Answer:
        service = self._readiness.service()
        body = _decode_decode(exchange)
        sequences = read_ids(body.ids, "ids")
        note_inputs(exchange, len(sequences), is_batch=sequences[:1] != [body.ids])
        texts = await service.decode(sequences, body.input_type, skip_special_tokens=body.skip_special_tokens)
        return Answer(msgspec.json.encode(texts))

    async def info(self, _: Exchange) -> Answer:
        service = self._readiness.service()
        card, batching = service.card, service.batching
        limits = service.dispatcher.limits
        info = InfoBody(
            model_id=card.source,
            model_sha=card.revision,
            model_dtype=service.engines[0].precision,
            served_model_name=self._name,
            model_type=_model_type(card),
            max_concurrent_requests=limits.queue_inputs,
            max_input_length=service.max_length,
            max_batch_tokens=limits.batch_tokens,
            max_batch_requests=None,
            max_client_batch_size=batching.max_client_batch_size or limits.queue_inputs,
            auto_truncate=batching.auto_truncate,
            tokenization_workers=TOKENIZER_THREADS,
            version=VERSION,
            vector_space=card.vector_space,
            dimensions=card.pipeline.dimensions,
            full_dimensions=card.pipeline.full_dimensions,
            normalize=card.pipeline.normalize,
            prompts=list(card.prompts),
            default_prompt=card.default_prompt,
            engine=_engine(service.engines),
            http_workers=self._http_workers,
        )
        return Answer(msgspec.json.encode(info), headers=(space_header(service),))


def _engine(engines: Sequence[EngineFacts]) -> EngineBody:
    """All are of one kind."""
    first = engines[0]
    devices = [one.device for one in engines]
    return EngineBody(first.kind, devices, first.precision, first.attention, first.parity, first.threads)


def _model_type(card: ModelCard) -> ModelType:
    match card.head:
        case ClassifierHead() as head:
            numbered = {str(number): label for number, label in enumerate(head.labels)}
            labels = LabelsModelType(numbered, {label: number for number, label in enumerate(head.labels)})
            return ModelType(reranker=labels) if len(head.labels) == 1 else ModelType(classifier=labels)
        case SparseHead():
            return ModelType(embedding=EmbeddingModelType("splade"))
        case MultiVectorHead():
            return ModelType(embedding=EmbeddingModelType("multi_vector"))
        case None:
            pooling = card.pipeline.pooling_name
            return ModelType(embedding=EmbeddingModelType(_TEI_POOLING.get(pooling, pooling)))


def _write_tokens(texts: list[str], prompt: str, tokenized: list[list[Token]]) -> bytes:
    lists = []
    for text, tokens in zip(texts, tokenized, strict=True):
        offsets = byte_offsets(prompt + text)
        lists.append(
            [
                TokenItem(token.id, token.text, token.special, None, None)
                if token.start is None or token.stop is None
                else TokenItem(token.id, token.text, False, offsets[token.start], offsets[token.stop])
                for token in tokens
            ]
        )
    return msgspec.json.encode(lists)


def byte_offsets(text: str) -> list[int] | range:
    """Of each code point, and of the end, in the UTF-8 bytes of the text."""
    if text.isascii():
        return range(len(text) + 1)
    points = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    widths = 1 + (points >= 0x80).astype(np.int64) + (points >= 0x800) + (points >= 0x10000)
    return [0, *np.cumsum(widths).tolist()]
