"""The dialect of OpenAI: `POST /v1/embeddings`."""

from __future__ import annotations

import orjson

from embedserve_runtime.api.asgi import Answer, Exchange
from embedserve_runtime.api.encoding import openai_base64, openai_numbers, write_rows
from embedserve_runtime.api.schemas import BodyDecoder, EmbeddingsBody, inputs_of
from embedserve_runtime.api.tei import expected_space, result_headers
from embedserve_runtime.readiness import Readiness
from embedserve_runtime.service import EmbedQuery

_decode = BodyDecoder(EmbeddingsBody)


class OpenAIRoutes:
    def __init__(self, readiness: Readiness, served_model_name: str) -> None:
        self._readiness = readiness
        self._model = orjson.dumps(served_model_name)

    async def embeddings(self, exchange: Exchange) -> Answer:
        service = self._readiness.service()
        body = _decode(exchange)
        query = EmbedQuery(
            inputs=inputs_of(body.input, "input"),
            normalize=True,
            dimensions=body.dimensions,
            vector_space=expected_space(exchange),
        )
        embedded = await service.embed(query)
        writer = openai_base64 if body.encoding_format == "base64" else openai_numbers
        rows = await write_rows(embedded.vectors, writer)
        usage = b'{"prompt_tokens":%d,"total_tokens":%d}' % (embedded.tokens, embedded.tokens)
        answer = b'{"object":"list","data":[%b],"model":%b,"usage":%b}' % (rows, self._model, usage)
        return Answer(answer, headers=result_headers(service, embedded))
