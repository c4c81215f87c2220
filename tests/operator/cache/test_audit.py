"""What the watches did not tell is found, and a dead watch as well."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from embedserve_operator.cache.audit import WATCHED_KINDS, Audit
from embedserve_operator.cache.caches import Caches
from embedserve_operator.cache.cluster import ClusterCache
from embedserve_operator.cache.objects import ObjectCache
from embedserve_operator.errors import WatchFailedError
from embedserve_operator.kube.client import KubeClient
from embedserve_operator.kube.references import ObjectKey
from embedserve_operator.queue.work_queue import WorkQueue
from tests.operator.api_server import ApiServer, serving, status

KEY = ObjectKey("search", "docs")
LABELS = {"embedserve.dev/service": "docs"}


def thing(version: str, uid: str = "u", *, labels: bool = True, name: str = "docs") -> dict[str, Any]:
    meta = {"namespace": "search", "name": name, "uid": uid, "resourceVersion": version}
    return {"metadata": {**meta, "labels": LABELS if labels else {}}}


class Stage:
    """An audit before a server whose lists can be set."""

    def __init__(self, kube: KubeClient) -> None:
        self.store, self.cluster = ObjectCache(), ClusterCache(watches_nodes=True)
        self.queue: WorkQueue[ObjectKey] = WorkQueue(base_delay=1, max_delay=1)
        self.alive: list[str] = []
        self.seen_alive = asyncio.Event()
        self.lists: dict[str, list[dict[str, Any]]] = {}
        self.refused = ""
        self.audit = Audit(
            kube,
            Caches(self.store, self.cluster),
            self.queue,
            watches_nodes=True,
            on_live_watch=self.is_alive,
        )

    def is_alive(self, kind: str) -> None:
        self.alive.append(kind)
        self.seen_alive.set()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        plural = request.path.rpartition("/")[2]
        optional = {"monitoring.coreos.com": "servicemonitors", "keda.sh": "scaledobjects"}
        group = request.path.split("/")[2]
        if group in optional and request.path.count("/") == len(("", "apis", "group")):
            if optional[group] in self.lists:
                return web.json_response({"resources": [{"name": optional[group]}]})
            return status(404, "no such group")
        if plural == self.refused:
            return status(403, "no right")
        return web.json_response({"items": self.lists.get(plural, [])})


@pytest.fixture
async def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    async with serving(ApiServer(), tmp_path, monkeypatch) as server, KubeClient(request_timeout=5) as kube:
        new_stage = Stage(kube)
        server.answer = new_stage.answer
        yield new_stage


async def test_what_is_gone_without_an_event_is_forgotten_and_its_resource_looked_at(stage: Stage) -> None:
    stage.store.put("Deployment", thing("1"))
    await stage.audit.run_once()
    assert list(stage.store.list_children(KEY)) == []
    assert await stage.queue.get(0) == KEY


async def test_a_watch_that_never_tells_what_was_listed_is_not_alive(stage: Stage) -> None:
    stage.store.put("Deployment", thing("1"))
    stage.lists["deployments"] = [thing("9")]
    await stage.audit.run_once()
    assert set(stage.alive) == set(WATCHED_KINDS), "it may still be on its way"
    stage.alive.clear()
    await stage.audit.run_once()
    assert set(WATCHED_KINDS) - set(stage.alive) == {"Deployment"}
    stage.store.put("Deployment", thing("9"))
    stage.alive.clear()
    await stage.audit.run_once()
    assert "Deployment" in stage.alive


async def test_a_watch_that_never_tells_of_a_new_object_is_not_alive(stage: Stage) -> None:
    stage.lists["embeddingservices"] = [thing("9")]
    await stage.audit.run_once()
    stage.alive.clear()
    await stage.audit.run_once()
    assert set(WATCHED_KINDS) - set(stage.alive) == {"EmbeddingService"}


async def test_what_was_listed_a_moment_ago_may_still_be_on_its_way(stage: Stage) -> None:
    """A kind that is listed anew leads to an audit at once, and another kind to the next."""
    stage.lists["deployments"] = [thing("9")]
    await stage.audit.run_once(regular=False)
    await stage.audit.run_once()
    assert set(stage.alive) == set(WATCHED_KINDS)


async def test_what_was_listed_and_is_gone_is_not_waited_for(stage: Stage) -> None:
    stage.lists["pods"] = [thing("9")]
    await stage.audit.run_once()
    stage.lists["pods"] = []
    stage.alive.clear()
    await stage.audit.run_once()
    assert set(stage.alive) == set(WATCHED_KINDS)


@pytest.mark.parametrize(
    ("kind", "plural"), [("ServiceMonitor", "servicemonitors"), ("ScaledObject", "scaledobjects")]
)
async def test_kinds_that_a_cluster_may_lack_are_known_where_their_definition_is(
    stage: Stage, kind: str, plural: str
) -> None:
    await stage.audit.refresh_unwatched()
    assert not stage.cluster.get_state().optional_kinds
    stage.lists[plural] = [thing("1")]
    await stage.audit.refresh_unwatched()
    assert stage.cluster.get_state().optional_kinds == {kind}
    assert len(list(stage.store.list_children(KEY))) == 1


async def test_a_node_that_vanished_in_a_gap_is_forgotten(stage: Stage) -> None:
    stage.cluster.put("Node", thing("1", name="gone"))
    stage.cluster.put("Node", thing("1", name="there"))
    stage.lists["nodes"] = [thing("1", name="there")]
    await stage.audit.run_once()
    nodes = stage.cluster.get_state().nodes
    assert nodes is not None
    assert [node.name for node in nodes] == ["there"]


async def test_empty_caches_are_filled_before_the_first_pass(stage: Stage) -> None:
    stage.lists |= {
        "embeddingservices": [thing("1", "r", labels=False)],
        "deployments": [thing("2", "d")],
        "nodes": [thing("3", "n", name="node")],
    }
    await stage.audit.fill()
    assert stage.store.get_resource(KEY) is not None
    assert [child["kind"] for child in stage.store.list_children(KEY)] == ["Deployment"]
    assert stage.cluster.get_state().nodes is not None
    assert await stage.queue.get(0) == KEY


async def test_audits_are_regular_however_often_a_kind_is_listed_anew(stage: Stage) -> None:
    relisted = asyncio.Event()
    relisted.set()
    running = asyncio.create_task(stage.audit.run(0.01, relisted))
    async with asyncio.timeout(30):
        while set(stage.alive) != set(WATCHED_KINDS):
            await stage.seen_alive.wait()
            stage.seen_alive.clear()
            relisted.set()
    running.cancel()


def test_a_heartbeat_of_a_node_changes_nothing() -> None:
    cluster = ClusterCache(watches_nodes=True)
    node = {"metadata": {"name": "n", "labels": {"a": "b"}}, "status": {"conditions": [{"lastHeartbeat": 1}]}}
    assert cluster.put("Node", node)
    assert not cluster.put("Node", {**node, "status": {"conditions": [{"lastHeartbeat": 2}]}})
    assert cluster.put("Node", {**node, "spec": {"unschedulable": True}})
    assert cluster.drop("Node", node)


def test_nodes_that_are_not_watched_are_unknown_and_not_none() -> None:
    assert ClusterCache(watches_nodes=False).get_state().nodes is None
    assert ClusterCache(watches_nodes=True).get_state().nodes == ()


async def test_lists_that_are_refused_end_the_process(stage: Stage) -> None:
    relisted = asyncio.Event()
    relisted.set()
    stage.refused = "deployments"
    with pytest.raises(WatchFailedError, match="no right"):
        await stage.audit.run(3600.0, relisted)
