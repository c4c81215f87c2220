"""The dialect of OpenAI: `POST /v1/embeddings` and `GET /v1/models`."""

from __future__ import annotations

import time

import msgspec
import orjson

from embedserve_runtime.api.asgi import Answer, Exchange
from embedserve_runtime.api.common import read_inputs, result_headers, terms_of
from embedserve_runtime.api.encoding import openai_base64, openai_numbers, write_rows
from embedserve_runtime.api.schemas import BodyDecoder, EmbeddingsBody, OpenAIModel, OpenAIModelList
from embedserve_runtime.readiness import Readiness
from embedserve_runtime.service import EmbedQuery

_decode = BodyDecoder(EmbeddingsBody)


class OpenAIRoutes:
    def __init__(self, readiness: Readiness, served_model_name: str) -> None:
        self._readiness = readiness
        self._model = orjson.dumps(served_model_name)
        model = OpenAIModel(id=served_model_name, created=int(time.time()))
        self._one = Answer(msgspec.json.encode(model))
        self._list = Answer(msgspec.json.encode(OpenAIModelList([model])))

    async def embeddings(self, exchange: Exchange) -> Answer:
        service = self._readiness.service()
        body = _decode(exchange)
        terms = terms_of(exchange, body.model)
        query = EmbedQuery(
            inputs=read_inputs(exchange, body.input, "input"),
            normalize=True,
            dimensions=body.dimensions,
            vector_space=terms.vector_space,
            timeout=terms.timeout,
        )
        embedded = await service.embed(query)
        writer = openai_base64 if body.encoding_format == "base64" else openai_numbers
        rows = await write_rows(embedded.dense, writer)
        usage = b'{"prompt_tokens":%d,"total_tokens":%d}' % (embedded.effort.tokens, embedded.effort.tokens)
        answer = b'{"object":"list","data":[%b],"model":%b,"usage":%b}' % (rows, self._model, usage)
        return Answer(answer, headers=result_headers(exchange, service, embedded.effort))

    async def models(self, _: Exchange) -> Answer:
        self._readiness.service()
        return self._list

    async def model(self, _: Exchange) -> Answer:
        self._readiness.service()
        return self._one
