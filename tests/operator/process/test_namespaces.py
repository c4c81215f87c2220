"""A namespace that is gone, or without rights, keeps the operator from nothing in the others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from embedserve_operator.errors import RefusedError, WatchFailedError
from embedserve_operator.kube.client import KubeClient
from embedserve_operator.process.namespaces import WatchedNamespaces
from tests.operator.api_server import ApiServer, serving, status


class NamespacedServer(ApiServer):
    """Lists nothing in most namespaces, and refuses to list some kinds in others."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: dict[str, str] = {}
        """Plurals of the kinds, by namespaces."""
        self.answer = self.list_objects

    async def list_objects(self, request: web.Request) -> web.StreamResponse:
        parts = request.path.split("/")
        namespace = parts[parts.index("namespaces") + 1]
        if self.refused.get(namespace) == parts[-1]:
            return status(403, f'cannot list resource "{parts[-1]}" in the namespace "{namespace}"')
        return web.json_response({"items": []})


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NamespacedServer]:
    namespaced_server = NamespacedServer()
    async with serving(namespaced_server, tmp_path, monkeypatch):
        yield namespaced_server


@pytest.mark.parametrize("refused", ["embeddingservices", "pods", "persistentvolumeclaims"])
async def test_the_others_are_watched(server: NamespacedServer, refused: str) -> None:
    server.refused = {"gone": refused}
    async with KubeClient(request_timeout=5, namespaces=("a", "gone", "b")) as kube:
        namespaces = WatchedNamespaces(kube, ("a", "gone", "b"))
        await namespaces.choose()
        assert namespaces.watched == ("a", "b")
        server.requests.clear()
        await kube.list_versions("Deployment", "x")
        assert [request.split("/")[5] for request in server.requests] == ["a", "b"]


async def test_without_any_namespace_the_process_says_why_it_cannot_work(server: NamespacedServer) -> None:
    server.refused = {"a": "pods", "b": "pods"}
    async with KubeClient(request_timeout=5, namespaces=("a", "b")) as kube:
        with pytest.raises(RefusedError, match='cannot list resource "pods" in the namespace "a"'):
            await WatchedNamespaces(kube, ("a", "b")).choose()


async def test_a_namespace_that_is_back_is_watched_by_a_new_process(server: NamespacedServer) -> None:
    server.refused = {"gone": "pods"}
    async with KubeClient(request_timeout=5, namespaces=("a", "gone")) as kube:
        namespaces = WatchedNamespaces(kube, ("a", "gone"))
        await namespaces.choose()
        server.refused = {}
        with pytest.raises(WatchFailedError, match="namespace gone can be watched now"):
            await namespaces.run(0.01)


async def test_where_all_namespaces_are_watched_none_is_asked_about(server: NamespacedServer) -> None:
    async with KubeClient(request_timeout=5) as kube:
        namespaces = WatchedNamespaces(kube, ())
        await namespaces.choose()
        assert namespaces.watched == ()
    assert server.requests == []
