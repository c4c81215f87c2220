"""Several workers and one upgrade: services roll one after another, and none is forgotten."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from embedserve_operator.apply.pod_client import PodClient
from embedserve_operator.cache.caches import Caches
from embedserve_operator.cache.cluster import ClusterCache
from embedserve_operator.cache.objects import ObjectCache
from embedserve_operator.clock import Clock
from embedserve_operator.kube.client import KubeClient
from embedserve_operator.kube.kinds import RESOURCE
from embedserve_operator.kube.objects import Manifest
from embedserve_operator.kube.references import ObjectKey
from embedserve_operator.manifests.metadata import UPGRADE
from embedserve_operator.process.reconciler import ApiConnections, Reconciler
from embedserve_operator.queue.work_queue import WorkQueue
from embedserve_operator.settings import RuntimeImage
from tests.operator.api_server import ApiServer, serving, status
from tests.operator.builders import SETTINGS, Cluster, hub_spec, resource
from tests.operator.moments import NOON

NAMES = ("one", "two", "three")
KEYS = [ObjectKey("search", name) for name in NAMES]
UPGRADED = replace(
    SETTINGS, images={**SETTINGS.images, "cpu": RuntimeImage("runtime:2")}, max_concurrent_upgrades=1
)


@dataclass
class Store:
    """The objects of the API server; the cache of the operator sees each write by its answer, and what a test puts
    in.
    """

    cache: ObjectCache = field(default_factory=ObjectCache)
    deployments: dict[str, Manifest] = field(default_factory=dict)
    resources: dict[str, Manifest] = field(default_factory=dict)
    version: int = 1

    def add_served(self, name: str) -> None:
        """Add a service that the operator made before it was upgraded."""
        served = Cluster(resource(hub_spec(), name=name)).applied().rolled_out().published()
        self.put(RESOURCE, served.resource)
        for child in served.children:
            self.put(child["kind"], child)

    def put(self, kind: str, received: Manifest) -> Manifest:
        self.version += 1
        stored = {**received, "metadata": {**received["metadata"], "resourceVersion": str(self.version)}}
        if kind == "Deployment":
            self.deployments[received["metadata"]["name"]] = stored
        elif kind == RESOURCE:
            self.resources[received["metadata"]["name"]] = stored
        self.cache.put(kind, stored)
        return stored

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Take what is applied."""
        if request.method == "GET":
            return status(404, "not found")
        body = json.loads(await request.read())
        metadata = {"uid": "u", **body["metadata"]}
        if body["kind"] == RESOURCE:
            stored = self.resources[metadata["name"]]
            return web.json_response(self.put(RESOURCE, {**stored, "status": body["status"]}))
        if body["kind"] == "Deployment" and "spec" in body:
            stored = self.deployments[metadata["name"]]
            changed = body["spec"] != stored["spec"]
            generation = stored["metadata"]["generation"] + changed
            metadata |= {"uid": stored["metadata"]["uid"], "generation": generation}
            written = {**body, "metadata": metadata, "status": stored["status"]}
            return web.json_response(self.put("Deployment", written))
        self.version += 1
        metadata["resourceVersion"] = str(self.version)
        return web.json_response({**body, "metadata": metadata})

    def make_ready(self, name: str) -> None:
        """Have the controller of Deployments report that all pods of one are ready."""
        there = self.deployments[name]
        generation = there["metadata"]["generation"]
        self.put("Deployment", {**there, "status": {**there["status"], "observedGeneration": generation}})

    def list_rolling(self) -> list[str]:
        """Names of the Deployments that say that an upgrade rolls them."""
        return [
            name
            for name, deployment in self.deployments.items()
            if deployment["metadata"]["annotations"].get(UPGRADE) == "Rolling"
        ]


@pytest.fixture
async def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    new_store, server = Store(), ApiServer()
    for name in NAMES:
        new_store.add_served(name)
    server.answer = new_store.answer
    async with serving(server, tmp_path, monkeypatch):
        yield new_store


async def test_services_roll_one_after_another_whatever_the_workers_decide_at_once(store: Store) -> None:
    queue, passes = WorkQueue[ObjectKey](base_delay=60, max_delay=60), asyncio.Event()
    async with (
        KubeClient(request_timeout=5) as kube,
        PodClient(message_timeout=5, check_timeout=5) as pod_client,
    ):
        reconciler = Reconciler(
            ApiConnections(kube, pod_client),
            Caches(store.cache, ClusterCache(watches_nodes=False)),
            queue,
            settings=UPGRADED,
            clock=Clock(now=lambda: NOON),
        )
        for key in KEYS:
            queue.add(key)
        workers = [
            asyncio.create_task(reconciler.run_worker(lambda: None, lambda *_: passes.set())) for _ in KEYS
        ]
        finished: list[str] = []
        async with asyncio.timeout(60):
            while len(finished) < len(NAMES):
                await passes.wait()
                passes.clear()
                rolling = store.list_rolling()
                assert len(rolling) <= 1, "one at a time"
                for name in set(rolling) - set(finished):
                    finished.append(name)
                    store.make_ready(name)
                    queue.add(ObjectKey("search", name.rpartition("-")[0]))
        for worker in workers:
            worker.cancel()
            with suppress(asyncio.CancelledError):
                await worker
    assert sorted(name.rpartition("-")[0] for name in finished) == sorted(NAMES)


def phases(store: Store) -> dict[str, Any]:
    return {key.name: phase for key, phase in store.cache.list_upgrades().items()}


async def test_the_cache_knows_what_rolls_from_the_deployments_alone(store: Store) -> None:
    """As after the death of the operator that began it."""
    (name,) = [deployment_name for deployment_name in store.deployments if deployment_name.startswith("one-")]
    stored = store.deployments[name]
    metadata = stored["metadata"]
    rolling = {**metadata["annotations"], UPGRADE: "Rolling"}
    generation = metadata["generation"] + 1
    store.put(
        "Deployment", {**stored, "metadata": {**metadata, "annotations": rolling, "generation": generation}}
    )
    assert phases(store) == {"one": "Rolling"}
    store.make_ready(name)
    assert phases(store) == {}, "what is ready does not count, even before the annotation is taken back"
    store.cache.drop("Deployment", store.deployments[name])
    assert phases(store) == {}
