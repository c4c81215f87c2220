"""What of a volume of models is in use: what is kept by the one who cleans it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from embedserve_operator.commands.in_use import find_names_in_use, list_in_use
from embedserve_operator.errors import ManifestError, RefusedError
from embedserve_operator.kube.objects import Manifest
from embedserve_operator.kube.views.resource import EmbeddingServiceObject
from embedserve_operator.kube.views.workloads import Deployment
from tests.operator.api_server import ApiServer, serving, status
from tests.operator.builders import REPO, REPORT, hub_spec, resource
from tests.operator.cache_builders import CONVERSION, cached, started, with_claim
from tests.operator.cache_builders import serving as served

SERVICE = served(cached(onnx={"precision": "int8"}))


def names_in_use(resources: list[Manifest], deployments: list[Manifest], claim: str) -> tuple[str, ...]:
    return find_names_in_use(
        [EmbeddingServiceObject.parse(received) for received in resources],
        [Deployment.parse(received) for received in deployments],
        claim,
    )


def deployments() -> list[dict[str, Any]]:
    return [child for child in SERVICE.children if child["kind"] == "Deployment"]


def test_what_a_service_serves_or_is_about_to_serve_is_in_use() -> None:
    assert names_in_use([SERVICE.resource], [], "docs-models") == (
        CONVERSION["artifact"],
        REPORT["digest"],
    )


def test_what_the_pods_of_an_earlier_model_serve_is_in_use() -> None:
    assert names_in_use([], deployments(), "docs-models") == (REPORT["digest"],)


NEW = resource(cached())
CHANGED = SERVICE.changed(
    cached(model={"refresh": "once"}),
).resource


@pytest.mark.parametrize(
    ("received", "is_kept"),
    [
        pytest.param(NEW, True, id="nothing known yet"),
        pytest.param(started(with_claim(cached())).resource, True, id="being fetched"),
        pytest.param(CHANGED, True, id="changed since"),
        pytest.param(SERVICE.resource, False, id="served"),
    ],
)
def test_a_service_that_is_not_served_yet_uses_what_its_spec_names(received: Manifest, is_kept: bool) -> None:
    assert (REPO in names_in_use([received], [], "docs-models")) is is_kept


def test_a_resource_that_cannot_be_read_ends_the_look() -> None:
    unreadable = {**NEW, "spec": {**NEW["spec"], "model": {"source": {}}}}
    with pytest.raises(ManifestError, match="search/docs cannot be read"):
        names_in_use([SERVICE.resource, unreadable], [], "docs-models")


def test_what_is_on_another_claim_is_not() -> None:
    elsewhere = {**SERVICE.resource, "spec": hub_spec()}
    assert names_in_use([SERVICE.resource, elsewhere], deployments(), "models") == ()


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
