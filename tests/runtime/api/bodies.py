"""No tests: the request bodies of all routes, and what reading one says."""

from __future__ import annotations

import inspect
import json
from typing import Any, get_args, get_type_hints

import pytest

from embedserve_runtime.api.app import create_app, create_management_app
from embedserve_runtime.api.context import ServerContext
from embedserve_runtime.api.errors import WrongShape
from embedserve_runtime.api.json_route import JsonRoute
from embedserve_runtime.api.memory import RequestMemory
from embedserve_runtime.api.operator_calls import OperatorCalls
from embedserve_runtime.api.schemas import cohere, native, openai, probes, ranking, score, tei
from embedserve_runtime.api.schemas.base import ApiModel
from embedserve_runtime.api.schemas.parsing import read_json
from embedserve_runtime.config import ServerSettings
from embedserve_runtime.frontends.context import build_request_series
from embedserve_runtime.service.readiness import Readiness
from embedserve_runtime.telemetry.metrics import Metrics
from tests.support.in_process_server import build_page

SPACE = "vs2-0123456789abcdef0123"
# What each request needs at least.
MINIMAL: dict[type[ApiModel], dict[str, Any]] = {
    tei.EmbedRequest: {"inputs": "a"},
    tei.EmbedTokensRequest: {"inputs": "a"},
    tei.PredictRequest: {"inputs": "a"},
    tei.SimilarityRequest: {"inputs": {"source_sentence": "a", "sentences": ["b"]}},
    tei.TokenizeRequest: {"inputs": "a"},
    tei.DecodeRequest: {"ids": [1]},
    tei.VertexRequest: {"instances": []},
    openai.EmbeddingRequest: {"input": "a"},
    cohere.CohereEmbedRequest: {},
    ranking.RerankRequest: {"query": "a"},
    native.EncodeRequest: {"inputs": "a"},
    score.ScoreRequest: {"query": "a", "documents": ["b"]},
    probes.CurrentRequest: {"vector_space": SPACE},
}


def request_models() -> list[type[ApiModel]]:
    """The bodies of all routes of both applications, and the models inside of them."""
    metrics = Metrics(build_request_series())
    context = ServerContext(
        Readiness(), "tiny", metrics.requests, build_page(metrics), RequestMemory(2**20, 2**24)
    )
    management = create_management_app(context, lambda _: None, OperatorCalls(None, ""))
    applications = create_app(context, ServerSettings()), management
    models: dict[type[ApiModel], None] = {}
    for route in (route for application in applications for route in application.routes):
        if isinstance(route, JsonRoute) and (body := get_type_hints(route.endpoint).get("body")):
            _collect_models(body, models)
    return [*models]


def _collect_models(annotation: Any, models: dict[type[ApiModel], None]) -> None:
    if inspect.isclass(annotation) and issubclass(annotation, ApiModel) and annotation not in models:
        models[annotation] = None
        for field in annotation.model_fields.values():
            _collect_models(field.annotation, models)
    for inner in get_args(annotation):
        _collect_models(inner, models)


def body_of(model: type[ApiModel], /, **fields: Any) -> bytes:
    return json.dumps({**MINIMAL[model], **fields}).encode()


def refused(model: type[ApiModel], content: bytes) -> str:
    with pytest.raises(WrongShape) as failure:
        read_json(model, content)
    return failure.value.message
