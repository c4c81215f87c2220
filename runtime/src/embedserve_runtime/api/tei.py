"""The dialect of Text Embeddings Inference: its routes over one embedding model.

`/rerank`, `/predict` and `/embed_sparse` read their bodies as TEI does and say that the model is of another kind.
`tei_tasks` has the routes of platforms, which choose one of these.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from importlib.metadata import version
from typing import NoReturn

import msgspec
import numpy as np

from embedserve_runtime.api.asgi import Answer, Exchange
from embedserve_runtime.api.common import (
    note_inputs,
    read_ids,
    read_inputs,
    read_texts,
    result_headers,
    side_of,
    space_header,
    terms_of,
)
from embedserve_runtime.api.encoding import number_arrays, write_matrices, write_rows
from embedserve_runtime.api.errors import WrongShape
from embedserve_runtime.api.schemas import BodyDecoder, EmbedBody, EmbeddingModelType, InfoBody, ModelType
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
from embedserve_runtime.errors import EmptyInput, WrongModelKind
from embedserve_runtime.heads.similarity import cosines
from embedserve_runtime.readiness import Readiness
from embedserve_runtime.results import Output
from embedserve_runtime.service import TOKENIZER_THREADS, EmbedQuery
from embedserve_runtime.tokenizing import Token

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


class TeiRoutes:
    def __init__(self, readiness: Readiness, served_model_name: str) -> None:
        self._readiness = readiness
        self._name = served_model_name

    async def embed(self, exchange: Exchange) -> Answer:
        service = self._readiness.service()
        query = embed_query(exchange, _decode_embed(exchange))
        embedded = await service.embed(query)
        rows = await write_rows(embedded.dense, number_arrays)
        return Answer(b"[" + rows + b"]", headers=result_headers(exchange, service, embedded))

    async def embed_all(self, exchange: Exchange) -> Answer:
        """The encoder's last hidden states: special tokens included, not normalised, no dense modules."""
        service = self._readiness.service()
        embedded = await service.embed(replace(_tokens_query(exchange), outputs=Output.HIDDEN))
        matrices = await write_matrices(embedded.hidden)
        return Answer(b"[" + matrices + b"]", headers=result_headers(exchange, service, embedded))

    async def embed_sparse(self, exchange: Exchange) -> Answer:
        service = self._readiness.service()
        service.check_count(len(_tokens_query(exchange).inputs))
        _refuse("sparse vectors need a model with SPLADE pooling; this one makes dense vectors: use /embed")

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
        return Answer(number_arrays(scores, 0), headers=result_headers(exchange, service, embedded))

    async def rerank(self, exchange: Exchange) -> Answer:
        self._readiness.service()
        body = _decode_rerank(exchange)
        note_inputs(exchange, len(body.texts), is_batch=True)
        if not body.texts:
            raise EmptyInput("`texts` cannot be empty")
        _refuse("model is not a re-ranker model: it makes vectors; use /similarity, or serve a re-ranker")

    async def predict(self, exchange: Exchange) -> Answer:
        service = self._readiness.service()
        inputs = _decode_predict(exchange).inputs
        is_batch = isinstance(inputs, list) and not all(isinstance(item, str) for item in inputs)
        count = len(inputs) if is_batch else 1
        note_inputs(exchange, count, is_batch=is_batch)
        if isinstance(inputs, list):
            _check_pairs(inputs, is_batch=is_batch)
        service.check_count(count)
        _refuse("model is not a classifier model: it makes vectors; use /embed, or serve a classifier")

    async def tokenize(self, exchange: Exchange) -> Answer:
        service = self._readiness.service()
        body = _decode_tokenize(exchange)
        texts = read_texts(exchange, body.inputs)
        tokenized = await service.tokenize(
            texts, body.prompt_name, add_special_tokens=body.add_special_tokens
        )
        prompt = service.prompt_of(EmbedQuery(texts, prompt_name=body.prompt_name))
        content = await asyncio.to_thread(_write_tokens, texts, prompt, tokenized)
        return Answer(content)

    async def decode(self, exchange: Exchange) -> Answer:
        service = self._readiness.service()
        body = _decode_decode(exchange)
        sequences = read_ids(body.ids, "ids")
        note_inputs(exchange, len(sequences), is_batch=sequences[:1] != [body.ids])
        texts = await service.decode(sequences, skip_special_tokens=body.skip_special_tokens)
        return Answer(msgspec.json.encode(texts))

    async def info(self, _: Exchange) -> Answer:
        service = self._readiness.service()
        card, batching = service.card, service.batching
        limits = service.dispatcher.limits
        info = InfoBody(
            model_id=card.source,
            model_sha=card.revision,
            model_dtype="float32",
            served_model_name=self._name,
            model_type=ModelType(
                EmbeddingModelType(_TEI_POOLING.get(card.pipeline.pooling_name, card.pipeline.pooling_name))
            ),
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
        )
        return Answer(msgspec.json.encode(info), headers=(space_header(service),))


def embed_query(exchange: Exchange, body: EmbedBody) -> EmbedQuery:
    """What a body of `/embed` asks for."""
    terms = terms_of(exchange)
    return EmbedQuery(
        inputs=read_inputs(exchange, body.inputs, "inputs"),
        truncate=body.truncate,
        side=side_of(body.truncation_direction),
        prompt_name=body.prompt_name,
        normalize=body.normalize is not False,
        dimensions=body.dimensions,
        vector_space=terms.vector_space,
        timeout=terms.timeout,
    )


def _tokens_query(exchange: Exchange) -> EmbedQuery:
    body, terms = _decode_tokens(exchange), terms_of(exchange)
    return EmbedQuery(
        inputs=read_inputs(exchange, body.inputs, "inputs"),
        truncate=body.truncate,
        side=side_of(body.truncation_direction),
        prompt_name=body.prompt_name,
        vector_space=terms.vector_space,
        timeout=terms.timeout,
    )


def _refuse(message: str) -> NoReturn:
    raise WrongModelKind(message)


def _check_pairs(inputs: list[str | list[str]], *, is_batch: bool) -> None:
    """TEI's shapes: one text or a pair, flat or as the items of a batch."""
    items = inputs if is_batch else [inputs]
    if not inputs or not all(isinstance(item, list) and 1 <= len(item) <= 2 for item in items):
        raise WrongShape("`inputs` must be a text, a pair of texts, or a list of arrays of one text or two")


def _write_tokens(texts: list[str], prompt: str, tokenized: list[list[Token]]) -> bytes:
    lists = []
    for text, tokens in zip(texts, tokenized, strict=True):
        offsets = _byte_offsets(prompt + text)
        lists.append(
            [
                TokenItem(token.id, token.text, token.special, None, None)
                if token.start is None or token.stop is None
                else TokenItem(token.id, token.text, False, offsets[token.start], offsets[token.stop])
                for token in tokens
            ]
        )
    return msgspec.json.encode(lists)


def _byte_offsets(text: str) -> list[int] | range:
    """Of each code point, and of the end, in the UTF-8 bytes of the text."""
    if text.isascii():
        return range(len(text) + 1)
    points = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    widths = 1 + (points >= 0x80).astype(np.int64) + (points >= 0x800) + (points >= 0x10000)
    return [0, *np.cumsum(widths).tolist()]
