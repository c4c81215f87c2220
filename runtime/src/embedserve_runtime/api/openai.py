"""The dialect of OpenAI: `POST /v1/embeddings` and `GET /v1/models`."""

from __future__ import annotations

import time

import msgspec
import orjson

from embedserve_runtime.api.asgi import Answer, Exchange
from embedserve_runtime.api.common import read_inputs, terms_of
from embedserve_runtime.api.encoding import openai_base64, openai_numbers
from embedserve_runtime.api.quick import Asked
from embedserve_runtime.api.schemas import BodyDecoder, EmbeddingsBody, OpenAIModel, OpenAIModelList
from embedserve_runtime.readiness import Readiness
from embedserve_runtime.service import Effort, EmbedQuery

_decode = BodyDecoder(EmbeddingsBody)


class OpenAIRoutes:
    def __init__(self, readiness: Readiness, served_model_name: str) -> None:
        self._readiness = readiness
        self._model = orjson.dumps(served_model_name)
        model = OpenAIModel(id=served_model_name, created=int(time.time()))
        self._one = Answer(msgspec.json.encode(model))
        self._list = Answer(msgspec.json.encode(OpenAIModelList([model])))

    def ask_embeddings(self, exchange: Exchange) -> Asked:
        """What `POST /v1/embeddings` asks for. Raises any RequestError."""
        body = _decode(exchange)
        terms = terms_of(exchange, body.model)
        query = EmbedQuery(
            read_inputs(exchange, body.input, "input"),
            normalize=True,
            dimensions=body.dimensions,
            vector_space=terms.vector_space,
            timeout=terms.timeout,
        )
        writer = openai_base64 if body.encoding_format == "base64" else openai_numbers
        return Asked(query, writer, self._list_of)

    def _list_of(self, rows: bytes, effort: Effort) -> bytes:
        usage = b'{"prompt_tokens":%d,"total_tokens":%d}' % (effort.tokens, effort.tokens)
        return b'{"object":"list","data":%b,"model":%b,"usage":%b}' % (rows, self._model, usage)

    async def models(self, _: Exchange) -> Answer:
        self._readiness.service()
        return self._list

    async def model(self, _: Exchange) -> Answer:
        self._readiness.service()
        return self._one
