"""Serves the management port: the self-check of the vectors, and the vector space that the service has switched to."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from embedserve_runtime.api.context import get_context, get_server_context, get_service
from embedserve_runtime.api.json_route import JsonRoute
from embedserve_runtime.api.operator_calls import OperatorCall, OperatorCalls
from embedserve_runtime.api.responses import BytesResponse
from embedserve_runtime.api.routers.error_docs import error_responses
from embedserve_runtime.api.schemas.base import to_json
from embedserve_runtime.api.schemas.probes import CurrentRequest, CurrentResponse, SelfCheck
from embedserve_runtime.api.schemas.tei import ErrorResponse
from embedserve_runtime.api.self_check import find_problems
from embedserve_runtime.forward.outputs import OutputKind

router = APIRouter(
    route_class=JsonRoute, tags=["management"], responses=error_responses(ErrorResponse, 403, 422, 503)
)


@router.get("/selfcheck", summary="Whether the vectors are sound", response_model=SelfCheck)
async def selfcheck(request: Request) -> Response:
    _check_caller(request, is_change=False)
    service = get_service(request)
    card = service.card
    problems = await find_problems(service)
    engine = service.engines[0]
    answer = SelfCheck(
        vector_space=card.vector_space,
        former_vector_space=card.former_vector_space,
        compute=engine.compute_precision,
        min_cosine=None if engine.served_parity is None else engine.served_parity.min_cosine,
        dimensions=card.pipeline.dimensions,
        outputs=[output.name.lower() for output in OutputKind if output in card.outputs and output.name],
        problems=problems,
    )
    return BytesResponse(to_json(answer), 503 if problems else 200)


@router.get("/current", summary="The vector space of this process", response_model=CurrentResponse)
async def get_current(request: Request) -> Response:
    return _answer_current(request)


@router.put(
    "/current", summary="Say which vector space the service's name stands for", response_model=CurrentResponse
)
async def put_current(request: Request, body: CurrentRequest) -> Response:
    """Set the vector space that the service's name stands for. Idempotent."""
    _check_caller(request, is_change=True)
    get_service(request)
    set_current: Callable[[str], None] = request.app.state.set_current
    set_current(body.vector_space)
    return _answer_current(request)


def _check_caller(request: Request, *, is_change: bool) -> None:
    """Check the caller. Raises CallRefused for a call that is not the leading operator's."""
    context = get_context(request)
    calls: OperatorCalls = request.app.state.operator_calls
    authorization = context.headers.get(b"authorization", b"")
    calls.check(OperatorCall(request.method, request.url.path, context.body, authorization, is_change))


def _answer_current(request: Request) -> Response:
    own = get_service(request).card.vector_space
    is_current = get_server_context(request).readiness.find_forwarding_space() is None
    return BytesResponse(to_json(CurrentResponse(vector_space=own, current=is_current)))
