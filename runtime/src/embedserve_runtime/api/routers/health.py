"""Serves the probes and the metrics page. None of them touches the engine: a busy engine is not a dead process."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from embedserve_runtime.api.context import get_server_context
from embedserve_runtime.api.json_route import JsonRoute
from embedserve_runtime.api.responses import BytesResponse
from embedserve_runtime.api.routers.error_docs import error_responses
from embedserve_runtime.api.schemas.base import to_json
from embedserve_runtime.api.schemas.probes import ProbeResponse
from embedserve_runtime.api.schemas.tei import ErrorResponse
from embedserve_runtime.errors import NotReady
from embedserve_runtime.telemetry.metrics import CONTENT_TYPE

health_router = APIRouter(route_class=JsonRoute, tags=["probes"])
"""TEI's probe, which every port has."""
probe_router = APIRouter(route_class=JsonRoute, tags=["probes"])
"""Kubernetes' probes and the metrics: on the management port, or on the serving port where there is no other."""


@health_router.get(
    "/health",
    summary="200 when ready",
    response_class=Response,
    responses={200: {"description": "Ready; the body is empty."}, **error_responses(ErrorResponse, 503)},
)
@health_router.get("/", include_in_schema=False)
@health_router.get("/ping", include_in_schema=False)
async def health(request: Request) -> Response:
    readiness = get_server_context(request).readiness
    if not readiness.is_ready:
        raise NotReady(f"not ready: {readiness.message}")
    return BytesResponse(b"")


@probe_router.get(
    "/livez",
    summary="200 while the process answers and its engine is not broken",
    response_model=ProbeResponse,
    responses={
        503: {"model": ProbeResponse, "description": "The engine is broken; the process has to be restarted."}
    },
)
async def livez(request: Request) -> Response:
    readiness = get_server_context(request).readiness
    if readiness.is_broken:
        return _answer_probe(503, readiness.phase, readiness.message)
    return _answer_probe(200, "Alive", "the process answers")


@probe_router.get(
    "/readyz",
    summary="200 when ready, else the reason",
    response_model=ProbeResponse,
    responses={503: {"model": ProbeResponse, "description": "Not ready."}},
)
async def readyz(request: Request) -> Response:
    readiness = get_server_context(request).readiness
    return _answer_probe(200 if readiness.is_ready else 503, readiness.phase, readiness.message)


@probe_router.get(
    "/metrics",
    summary="Prometheus metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def metrics(request: Request) -> Response:
    page = await get_server_context(request).metrics_page()
    return BytesResponse(page, content_type=CONTENT_TYPE)


def _answer_probe(status: int, phase: str, message: str) -> Response:
    return BytesResponse(to_json(ProbeResponse(status=str(phase), message=message)), status)
