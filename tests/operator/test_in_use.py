"""What of a volume of models is in use: what is kept by the one who cleans it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from embedserve_operator.errors import RefusedError
from embedserve_operator.in_use import list_in_use, names_in_use
from tests.operator.api_server import ApiServer, serving, status
from tests.operator.builders import REPORT, hub_spec
from tests.operator.cache_builders import CONVERSION, cached
from tests.operator.cache_builders import serving as served

SERVICE = served(cached(onnx={"precision": "int8"}))


def deployments() -> list[dict[str, Any]]:
    return [child for child in SERVICE.children if child["kind"] == "Deployment"]


def test_what_a_service_serves_or_is_about_to_serve_is_in_use() -> None:
    assert names_in_use([SERVICE.resource], [], "docs-models") == (CONVERSION["artifact"], REPORT["digest"])


def test_what_the_pods_of_an_earlier_model_serve_is_in_use() -> None:
    assert names_in_use([], deployments(), "docs-models") == (REPORT["digest"],)


def test_what_is_on_another_claim_is_not() -> None:
    other = {**SERVICE.resource, "spec": hub_spec()}
    assert names_in_use([SERVICE.resource, other], deployments(), "models") == ()


async def test_what_cannot_be_asked_is_not_taken_for_unused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        return (
            status(403, "not allowed") if "deployments" in request.path else web.json_response({"items": []})
        )

    async with serving(ApiServer(), tmp_path, monkeypatch) as server:
        server.answer = refuse
        with pytest.raises(RefusedError, match="not allowed"):
            await list_in_use("search", "models", 5)
