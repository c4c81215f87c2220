"""Jobs are created once and deleted by UID; one that somebody else was quicker to make is good as well."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from embedserve_operator.apply.children import ChildApplier, explain_refusal
from embedserve_operator.cache.objects import ObjectCache
from embedserve_operator.errors import RefusedError
from embedserve_operator.kube.client import KubeClient
from embedserve_operator.kube.references import ChildRef
from embedserve_operator.plan import Plan
from tests.operator.api_server import ApiServer, serving, status
from tests.operator.builders import Cluster, resource
from tests.operator.cache_builders import cached, started


class JobServer(ApiServer):
    """Creates Jobs, of each name one."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: dict[str, Any] = {}
        self.deleted: list[Any] = []
        self.answer = self.keep

    async def keep(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            return status(404, "not found")
        body = json.loads(await request.read())
        if request.method == "DELETE":
            self.deleted.append((request.path.rpartition("/")[2], body["preconditions"]["uid"]))
            return web.json_response({})
        name = body["metadata"]["name"]
        if name in self.jobs:
            return status(409, f'jobs.batch "{name}" already exists')
        self.jobs[name] = body
        return web.json_response(
            {**body, "metadata": {**body["metadata"], "uid": "j", "resourceVersion": "1"}}
        )


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[JobServer]:
    job_server = JobServer()
    async with serving(job_server, tmp_path, monkeypatch):
        yield job_server


def fetching() -> Cluster:
    """A service whose Job is to be started next."""
    return Cluster(resource(cached())).applied().published()


async def test_a_job_is_created_once(server: JobServer) -> None:
    cluster = fetching()
    plan, observed = cluster.plan(), cluster.observed()
    only_jobs = Plan(plan.outcome, jobs_to_create=plan.jobs_to_create)
    async with KubeClient(request_timeout=5) as kube:
        applier = ChildApplier(kube, ObjectCache())
        assert await applier.apply(only_jobs, observed) is None
        assert await applier.apply(only_jobs, observed) is None, "one that is there is no trouble"
    assert list(server.jobs) == [plan.jobs_to_create[0]["metadata"]["name"]]


async def test_a_job_that_is_refused_is_told(server: JobServer) -> None:
    async def refuse(_request: web.Request) -> web.StreamResponse:
        return status(403, "exceeded quota: jobs")

    server.answer = refuse
    cluster = fetching()
    plan = Plan(cluster.plan().outcome, jobs_to_create=cluster.plan().jobs_to_create)
    async with KubeClient(request_timeout=5) as kube:
        refusal = await ChildApplier(kube, ObjectCache()).apply(plan, cluster.observed())
    assert refusal is not None
    assert (refusal.reason, "exceeded quota" in refusal.message) == ("ChildRefused", True)


async def test_a_job_that_is_in_the_way_is_deleted_and_no_other_of_its_name(server: JobServer) -> None:
    cluster = started(fetching())
    observed = cluster.observed()
    plan = Plan(cluster.plan().outcome, jobs_to_delete=observed.jobs)
    async with KubeClient(request_timeout=5) as kube:
        await ChildApplier(kube, ObjectCache()).apply(plan, observed)
    assert server.deleted == [(observed.jobs[0].name, observed.jobs[0].uid)]


NO_TYPE = "spec.template.spec.volumes[3]: Required value: must specify a volume type"
UNDECLARED = '.spec.template.spec.volumes[name="source"].image: field not declared in schema'


@pytest.mark.parametrize(
    ("volumes", "message", "reason"),
    [
        ([{"name": "source", "image": {"reference": "r:1"}}], NO_TYPE, "ImageVolumesMissing"),
        ([{"name": "source", "image": {"reference": "r:1"}}], UNDECLARED, "ImageVolumesMissing"),
        ([{"name": "source", "emptyDir": {}}], UNDECLARED, "ChildRefused"),
        ([{"name": "source", "image": {"reference": "r:1"}}], "exceeded quota", "ChildRefused"),
    ],
)
def test_an_api_server_without_image_volumes_is_named(volumes: list[Any], message: str, reason: str) -> None:
    manifest = {"spec": {"template": {"spec": {"volumes": volumes}}}}
    refusal = explain_refusal(ChildRef("Deployment", "docs-1"), RefusedError(message), manifest)
    assert refusal.reason == reason
    assert message in refusal.message


@pytest.mark.parametrize(
    ("message", "is_transient"),
    [
        pytest.param(
            "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support "
            "resize",
            False,
            id="a claim that cannot grow",
        ),
        pytest.param("exceeded quota", True, id="a quota, which others may free"),
    ],
)
def test_a_refusal_that_no_waiting_heals_is_told_from_one_that_may_end(
    message: str, is_transient: bool
) -> None:
    refusal = explain_refusal(ChildRef("PersistentVolumeClaim", "models"), RefusedError(message), {})
    assert (refusal.reason, refusal.is_transient) == ("ChildRefused", is_transient)


IMAGE = {"model": {"source": {"image": {"reference": "registry.example/minilm:1"}}}}


def without_images(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest as an API server whose feature is off keeps it: without such volumes and their mounts."""
    pod = manifest["spec"]["template"]["spec"]
    volumes = [volume for volume in pod["volumes"] if "image" not in volume]
    return {**manifest, "spec": {**manifest["spec"], "template": {"spec": {**pod, "volumes": volumes}}}}


@pytest.mark.parametrize(("has_feature", "want"), [(False, "ImageVolumesMissing"), (True, None)])
async def test_a_volume_that_the_api_server_would_leave_out_is_named_and_nothing_is_made(
    server: JobServer, has_feature: bool, want: str | None
) -> None:
    created = []

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            return status(404, "not found")
        body = json.loads(await request.read())
        if "dryRun" not in request.query:
            created.append(body["kind"])
        meta = {**body["metadata"], "uid": "d", "resourceVersion": "1"}
        return web.json_response({**(body if has_feature else without_images(body)), "metadata": meta})

    server.answer = answer
    cluster = Cluster(resource(IMAGE))
    plan = cluster.plan()
    deployments = tuple(child for child in plan.children if child["kind"] == "Deployment")
    async with KubeClient(request_timeout=5) as kube:
        refusal = await ChildApplier(kube, ObjectCache()).apply(
            Plan(plan.outcome, children=deployments), cluster.observed()
        )
    assert (refusal.reason if refusal is not None else None) == want
    assert created == (["Deployment"] if has_feature else [])
