"""Serves the routes that rank: TEI's `POST /rerank`, and `/v1/rerank` and `/v2/rerank` of Cohere and Jina.

Each takes the bodies of all of them.
"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from embedserve_runtime.api.context import get_context
from embedserve_runtime.api.json_route import JsonRoute
from embedserve_runtime.api.routers.error_docs import error_responses
from embedserve_runtime.api.routers.rank_task import build_rank_task
from embedserve_runtime.api.routers.tei_tasks import run_task
from embedserve_runtime.api.schemas.messages import MessageErrorResponse
from embedserve_runtime.api.schemas.ranking import RerankItem, RerankRequest, RerankResponse
from embedserve_runtime.api.schemas.tei import ErrorResponse

_SUMMARY = "Scores of texts or documents for a query, the best first"

router = APIRouter(route_class=JsonRoute, tags=["ranking"], responses=error_responses(MessageErrorResponse))


@router.post(
    "/rerank",
    summary=_SUMMARY,
    response_model=list[RerankItem] | RerankResponse,
    responses=error_responses(ErrorResponse),
)
async def rerank(request: Request, body: RerankRequest) -> Response:
    return await run_task(request, build_rank_task(get_context(request), body))


@router.post("/v1/rerank", summary=_SUMMARY, response_model=RerankResponse | list[RerankItem])
async def rerank_v1(request: Request, body: RerankRequest) -> Response:
    return await run_task(request, build_rank_task(get_context(request), body, "1"))


@router.post("/v2/rerank", summary=_SUMMARY, response_model=RerankResponse | list[RerankItem])
async def rerank_v2(request: Request, body: RerankRequest) -> Response:
    return await run_task(request, build_rank_task(get_context(request), body, "2"))
