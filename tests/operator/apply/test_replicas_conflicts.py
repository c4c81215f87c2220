"""A number of pods that another manager has set: it is taken back from one that is gone, and from no other."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from embedserve_operator.apply.children import ChildApplier
from embedserve_operator.apply.results import ApplyFailure
from embedserve_operator.cache.objects import ObjectCache
from embedserve_operator.kube.client import KubeClient
from embedserve_operator.kube.objects import Manifest
from tests.operator.api_server import ApiServer, serving, status
from tests.operator.builders import Cluster, hub_spec, resource

BY_AUTOSCALER = (
    'Apply failed with 1 conflict: conflict with "kube-controller-manager" with subresource "scale" using apps/v1: '
    ".spec.replicas"
)
BY_GITOPS = 'Apply failed with 1 conflict: conflict with "argocd-controller": .spec.replicas'
BY_EDIT = 'Apply failed with 1 conflict: conflict with "mesh" using apps/v1: .spec.template.spec.dnsPolicy'
LIVE = 7


class ConflictingServer(ApiServer):
    """Refuses a Deployment with another number of pods than the live one, unless it is forced."""

    def __init__(self) -> None:
        super().__init__()
        self.conflict = BY_AUTOSCALER
        self.autoscaled = ""
        """The Deployment that an autoscaler of somebody else is about."""
        self.deployment: Manifest = {}
        self.written: list[tuple[Any, str]] = []
        """The number of pods and `force` of each Deployment that was written."""
        self.answer = self.answer_request

    async def answer_request(self, request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/horizontalpodautoscalers"):
            target = {"scaleTargetRef": {"kind": "Deployment", "name": self.autoscaled}}
            items = [{"kind": "HorizontalPodAutoscaler", "spec": target}] if self.autoscaled else []
            return web.json_response({"kind": "List", "metadata": {}, "items": items})
        if request.method == "GET":
            return web.json_response(self.deployment)
        body = json.loads(await request.read())
        if body["kind"] == "Deployment":
            replicas, force = body["spec"]["replicas"], request.query["force"]
            if force == "false" and replicas != LIVE:
                return status(409, self.conflict)
            self.written.append((replicas, force))
        return web.json_response({**body, "metadata": {**body["metadata"], "uid": "u"}})


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ConflictingServer]:
    conflicting = ConflictingServer()
    async with serving(conflicting, tmp_path, monkeypatch):
        yield conflicting


def build_cluster(server: ConflictingServer, generation: int = 1) -> Cluster:
    """A serving service whose Deployment somebody has scaled."""
    cluster = Cluster(resource(hub_spec(), generation=generation)).applied().rolled_out().applied()
    others = [child for child in cluster.children if child["kind"] != "Deployment"]
    (deployment,) = (child for child in cluster.children if child["kind"] == "Deployment")
    server.deployment = {**deployment, "spec": {**deployment["spec"], "replicas": LIVE}}
    return Cluster(cluster.resource, (*others, server.deployment), cluster.pods)


async def apply_often(
    server: ConflictingServer, *, times: int, generation: int = 1
) -> list[ApplyFailure | None]:
    cluster = build_cluster(server, generation)
    async with KubeClient(request_timeout=5) as kube:
        applier = ChildApplier(kube, ObjectCache())
        return [await applier.apply(cluster.plan(), cluster.observed()) for _ in range(times)]


async def test_the_number_of_an_autoscaler_that_is_gone_is_taken_back_however_often_it_was_before(
    server: ConflictingServer,
) -> None:
    server.autoscaled = "another"
    assert await apply_often(server, times=6) == [None] * 6
    assert server.written == [(1, "true")] * 6


async def test_the_number_of_an_autoscaler_that_lives_is_not_fought_over_and_everything_else_is_written(
    server: ConflictingServer,
) -> None:
    server.autoscaled = f"docs-{build_cluster(server).revision()}"
    failures = await apply_often(server, times=5)
    assert [failure and failure.reason for failure in failures] == [None, None, None, *["FieldConflict"] * 2]
    assert server.written == [*[(1, "true")] * 3, *[(LIVE, "false")] * 2]


@pytest.mark.parametrize(
    ("conflict", "written"), [(BY_GITOPS, [(LIVE, "false")]), (BY_EDIT.replace("using apps/v1", ""), [])]
)
async def test_what_a_manager_applies_is_reported_at_once(
    server: ConflictingServer, conflict: str, written: list[tuple[int, str]]
) -> None:
    server.conflict = conflict
    (failure,) = await apply_often(server, times=1)
    assert failure is not None
    assert failure.reason == "FieldConflict"
    assert server.written == written


async def test_an_edit_of_the_resource_is_worth_another_try(server: ConflictingServer) -> None:
    server.conflict = BY_EDIT
    first, second = build_cluster(server), build_cluster(server, generation=2)
    async with KubeClient(request_timeout=5) as kube:
        applier = ChildApplier(kube, ObjectCache())
        failures = [await applier.apply(first.plan(), first.observed()) for _ in range(4)]
        assert failures[-1] is not None
        assert await applier.apply(second.plan(), second.observed()) is None
