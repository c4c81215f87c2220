"""`POST /v1/rerank` and `/v2/rerank` as Cohere and Jina have them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec

from embedserve_runtime.api.asgi import Answer, Exchange
from embedserve_runtime.api.cohere_schemas import CohereVersion
from embedserve_runtime.api.common import note_inputs, result_lines, terms_of
from embedserve_runtime.api.ranking_schemas import (
    RankAnswer,
    RankBody,
    RankDocument,
    RankMeta,
    RankResult,
    RankTokens,
    RankUnits,
    RankUsage,
)
from embedserve_runtime.api.schemas import BodyDecoder
from embedserve_runtime.errors import EmptyInput, InvalidInput
from embedserve_runtime.readiness import Readiness
from embedserve_runtime.service import Pair, ScoreQuery, rank

DOCUMENTS_PER_UNIT = 100

_decode = BodyDecoder(RankBody)


class RankingRoutes:
    def __init__(self, readiness: Readiness, served_model_name: str) -> None:
        self._readiness = readiness
        self._name = served_model_name

    def rerank(self, version: Literal["1", "2"]) -> Callable[[Exchange], Awaitable[Answer]]:
        """The handler; the versions differ in the number that they answer."""

        async def handler(exchange: Exchange) -> Answer:
            return await self._rerank(exchange, CohereVersion(version))

        return handler

    async def _rerank(self, exchange: Exchange, version: CohereVersion) -> Answer:
        service = self._readiness.service()
        body = _decode(exchange)
        terms = terms_of(exchange, body.model)
        texts = _texts_of(body)
        note_inputs(exchange, len(texts), is_batch=True)
        query = ScoreQuery(
            [Pair(body.query, text) for text in texts],
            ranks=True,
            truncate=True,
            instruction=body.instruction,
            document_tokens=body.max_tokens_per_doc,
            vector_space=terms.vector_space,
            timeout=terms.timeout,
        )
        scored = await rank(service, query)
        places = scored.ranking()[: body.top_n]
        results = [
            RankResult(
                place,
                float(scored.scores[place, 0]),
                RankDocument(texts[place]) if body.return_documents else None,
            )
            for place in places.tolist()
        ]
        tokens = scored.effort.tokens
        meta = RankMeta(version, RankUnits(-(-len(texts) // DOCUMENTS_PER_UNIT)), RankTokens(tokens))
        answer = RankAnswer(exchange.request_id, self._name, results, meta, RankUsage(tokens, tokens))
        lines = result_lines(exchange, service, scored.effort)
        return Answer(msgspec.json.encode(answer), lines=lines)


def _texts_of(body: RankBody) -> list[str]:
    if not body.documents:
        raise EmptyInput("`documents` cannot be empty")
    if body.max_chunks_per_doc is not None:
        raise InvalidInput(
            "`max_chunks_per_doc` is not supported: a document is cut to what the model takes; "
            "use `max_tokens_per_doc`, or send the chunks as documents"
        )
    if body.rank_fields not in (None, ["text"]):
        raise InvalidInput("`rank_fields` other than text are not supported; put the fields into the text")
    return [item if isinstance(item, str) else item.text for item in body.documents]
