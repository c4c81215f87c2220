"""What the operator counts of itself."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from embedserve_operator.apply.pod_client import PodClient
from embedserve_operator.cache.caches import Caches
from embedserve_operator.cache.cluster import ClusterCache
from embedserve_operator.cache.objects import ObjectCache
from embedserve_operator.clock import Clock
from embedserve_operator.commands.logs import configure_logging
from embedserve_operator.kube.client import KubeClient
from embedserve_operator.kube.kinds import RESOURCE
from embedserve_operator.kube.references import ChildRef, ObjectKey
from embedserve_operator.process.health import HeartbeatMonitor, serve_health
from embedserve_operator.process.metrics import OperatorMetrics, PassResult
from embedserve_operator.process.reconciler import ApiConnections, Reconciler
from embedserve_operator.queue.work_queue import WorkQueue
from tests.operator.api_server import ApiServer, serving, status
from tests.operator.builders import SETTINGS, resource
from tests.operator.moments import NOON
from tests.support.ports import find_free_port


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ApiServer]:
    async with serving(ApiServer(), tmp_path, monkeypatch) as api_server:
        yield api_server


def read_values(page: bytes) -> dict[str, float]:
    """Values by the metric's name with its labels in the order of their names."""
    return {
        "/".join(
            (sample.name.removeprefix("embedserve_operator_"), *map(str, sample.labels.values()))
        ): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


async def test_requests_are_counted_with_what_became_of_them(server: ApiServer) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return status(404, "not found") if "gone" in request.path else web.json_response({})

    server.answer = answer
    metrics = OperatorMetrics()
    async with KubeClient(request_timeout=5, on_request=metrics.count_request) as kube:
        await kube.get("search", ChildRef("Service", "gone"))
        await kube.get("search", ChildRef("Service", "docs"))
        await kube.get("search", ChildRef("Service", "docs"))
    values = read_values(metrics.format_page())
    assert (values["api_requests_total/GET/200"], values["api_requests_total/GET/404"]) == (2, 1)
    assert values["api_request_seconds_count"] == 3


@pytest.mark.parametrize(("code", "result"), [(200, "succeeded"), (403, "incomplete"), (503, "failed")])
async def test_a_pass_is_counted_with_its_result(server: ApiServer, code: int, result: str) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            return status(404, "not found")
        if code != 200 and not request.path.endswith(("status", "events")):
            return status(code, "no")
        body = json.loads(await request.read())
        return web.json_response(
            {**body, "metadata": {**body["metadata"], "uid": "u", "resourceVersion": "1"}}
        )

    server.answer = answer
    metrics, objects, queue = (
        OperatorMetrics(),
        ObjectCache(),
        WorkQueue[ObjectKey](base_delay=60, max_delay=60),
    )
    metrics.watch_value("queue_later", queue.count_delayed)
    key = objects.put(RESOURCE, resource())
    counted = asyncio.Event()

    def count(what: PassResult, seconds: float) -> None:
        metrics.count_pass(what, seconds)
        counted.set()

    async with (
        KubeClient(request_timeout=5) as kube,
        PodClient(message_timeout=5, check_timeout=5) as pod_client,
    ):
        reconciler = Reconciler(
            ApiConnections(kube, pod_client),
            Caches(objects, ClusterCache(watches_nodes=False)),
            queue,
            settings=SETTINGS,
            clock=Clock(now=lambda: NOON),
        )
        queue.add(key)
        working = asyncio.create_task(reconciler.run_worker(lambda: None, count))
        async with asyncio.timeout(60):
            await counted.wait()
        working.cancel()
    values = read_values(metrics.format_page())
    assert {name: values[f"passes_total/{name}"] for name in ("succeeded", "incomplete", "failed")} == {
        name: float(name == result) for name in ("succeeded", "incomplete", "failed")
    }
    assert values["queue_later"] == (0 if result == "succeeded" else 1)


async def test_the_page_is_served_beside_the_probes() -> None:
    metrics, port = OperatorMetrics(), find_free_port()
    runner = await serve_health(HeartbeatMonitor(lambda: 0.0), port, format_metrics=metrics.format_page)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            assert read_values((await client.get("/metrics")).content)["leader"] == 0
            metrics.watch_value("leader", lambda: True)
            answer = await client.get("/metrics")
            assert read_values(answer.content)["leader"] == 1
            assert answer.headers["content-type"].startswith("text/plain")
    finally:
        await runner.cleanup()


def test_a_log_for_programs_is_an_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, root.handlers, level = root.handlers, [], root.level
    try:
        configure_logging("info", "json")
        log = logging.getLogger("embedserve_operator.test")
        log.info('%s: a "quoted" word\nand a second line', "search/docs")
        try:
            raise ValueError("broken")
        except ValueError:
            log.exception("this pass failed")
    finally:
        root.handlers = before
        root.setLevel(level)
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert (first["level"], first["message"]) == ("info", 'search/docs: a "quoted" word\nand a second line')
    assert "ValueError: broken" in second["exception"]
