"""`POST /v1/rerank` and `/v2/rerank` as Cohere and Jina have them."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from embedserve_runtime.api.context import get_context, get_server_context, get_service
from embedserve_runtime.api.inputs import record_inputs, request_options
from embedserve_runtime.api.json_route import JsonRoute
from embedserve_runtime.api.responses import result_response
from embedserve_runtime.api.routers.error_docs import error_responses
from embedserve_runtime.api.schemas.base import to_json
from embedserve_runtime.api.schemas.cohere import CohereVersion
from embedserve_runtime.api.schemas.messages import MessageBody
from embedserve_runtime.api.schemas.ranking import (
    RankAnswer,
    RankBody,
    RankDocument,
    RankMeta,
    RankResult,
    RankTokens,
    RankUnits,
    RankUsage,
)
from embedserve_runtime.errors import EmptyInput, InvalidInput
from embedserve_runtime.service import Pair, ScoreQuery, rank

DOCUMENTS_PER_UNIT = 100
_SUMMARY = "Scores of documents for a query, as Cohere and Jina give them"

router = APIRouter(route_class=JsonRoute, tags=["ranking"], responses=error_responses(MessageBody))


@router.post("/v1/rerank", summary=_SUMMARY, response_model=RankAnswer)
async def rerank_v1(request: Request, body: RankBody) -> Response:
    return await _rerank(request, body, "1")


@router.post("/v2/rerank", summary=_SUMMARY, response_model=RankAnswer)
async def rerank_v2(request: Request, body: RankBody) -> Response:
    return await _rerank(request, body, "2")


async def _rerank(request: Request, body: RankBody, version: Literal["1", "2"]) -> Response:
    """The versions differ in the number that they answer."""
    service, context = get_service(request), get_context(request)
    options = request_options(context, body.model)
    _check(body)
    count = len(body.documents)
    record_inputs(context, count, is_batch=True)
    service.check_room(count)  # before a pair is made for each document
    texts = [item if isinstance(item, str) else item.text for item in body.documents]
    query = ScoreQuery(
        [Pair(body.query, text) for text in texts],
        ranks=True,
        truncate=True,
        instruction=body.instruction,
        document_tokens=body.max_tokens_per_doc,
        vector_space=options.vector_space,
        timeout=options.timeout,
    )
    scored = await rank(service, query)
    results = [
        RankResult(
            index=place,
            relevance_score=float(scored.scores[place, 0]),
            document=RankDocument(text=texts[place]) if body.return_documents else None,
        )
        for place in scored.rank_items()[: body.top_n].tolist()
    ]
    tokens = scored.usage.tokens
    answer = RankAnswer(
        id=context.request_id,
        model=get_server_context(request).model_name,
        results=results,
        meta=RankMeta(
            api_version=CohereVersion(version=version),
            billed_units=RankUnits(search_units=-(-count // DOCUMENTS_PER_UNIT)),
            tokens=RankTokens(input_tokens=tokens),
        ),
        usage=RankUsage(prompt_tokens=tokens, total_tokens=tokens),
    )
    return result_response(request, service, to_json(answer), scored.usage)


def _check(body: RankBody) -> None:
    if not body.documents:
        raise EmptyInput("`documents` cannot be empty")
    if body.max_chunks_per_doc is not None:
        raise InvalidInput(
            "`max_chunks_per_doc` is not supported: a document is cut to what the model takes; "
            "use `max_tokens_per_doc`, or send the chunks as documents"
        )
    if body.rank_fields not in (None, ["text"]):
        raise InvalidInput("`rank_fields` other than text are not supported; put the fields into the text")
