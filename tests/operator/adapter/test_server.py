"""The adapter over real TLS, with pods that answer over real HTTP."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from embedserve_operator.adapter.certificate_rotator import CertificateRotator
from embedserve_operator.adapter.queries import ROOT
from embedserve_operator.adapter.registrar import Registrar
from embedserve_operator.adapter.registration import (
    API_SERVICE,
    NoChange,
    Registration,
    Withdrawal,
    read_bundle,
)
from embedserve_operator.adapter.scraper import Scraper
from embedserve_operator.adapter.server import (
    FrontProxyAuthenticator,
    MetricsApi,
    TlsListener,
    build_application,
)
from embedserve_operator.cache.cluster import ClusterCache
from embedserve_operator.clock import Clock
from embedserve_operator.kube.client import KubeClient
from embedserve_operator.kube.views.cluster import APIService
from embedserve_operator.settings import AdapterReference, AdapterSettings, RegistrationSettings
from tests.operator.adapter.cluster import Authority, Objects, Pod, answering, client_context
from tests.operator.api_server import ApiServer, serving
from tests.support.ports import find_free_port

PLACE = AdapterReference("system", "embedserve-metrics-adapter")
AUTHENTICATION = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
CERTIFICATES = f"/api/v1/namespaces/system/configmaps/{PLACE.name}"
DEPLOYMENT = f"/apis/apps/v1/namespaces/system/deployments/{PLACE.name}"
OWNER = f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{PLACE.name}"
REGISTERED = f"/apis/apiregistration.k8s.io/v1/apiservices/{API_SERVICE}"
DEPTH = f"{ROOT}/namespaces/search/pods/%2A/embedserve_queue_depth?labelSelector=a%3Db"


@dataclass
class SetClock:
    """Time that tests move; three weeks back, so that a certificate of three weeks later is valid for TLS."""

    at: datetime = field(default_factory=lambda: datetime.now(UTC) - timedelta(days=21))
    seconds: float = 0.0

    def now(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return self.seconds


@dataclass
class Adapter:
    """One replica, and what is around it."""

    objects: Objects
    authority: Authority
    folder: Path
    clock: SetClock
    rotator: CertificateRotator
    registrar: Registrar
    cluster: ClusterCache
    port: int

    async def ask(
        self, path: str, *, name: str | None = "front-proxy-client", authority: Authority | None = None
    ) -> tuple[int, Any]:
        """Status and document of an answer to a client with a certificate of that name."""
        certificate = (authority or self.authority).client(name, self.folder) if name is not None else None
        context = client_context(self.bundle(), certificate)
        url = f"https://127.0.0.1:{self.port}{path}"
        async with aiohttp.ClientSession() as session:
            # The encoded star as it is sent: aiohttp would decode it.
            target = URL(url, encoded=True)
            async with session.get(target, ssl=context, server_hostname=PLACE.server_name) as answer:
                return answer.status, await answer.json()

    def bundle(self) -> str:
        return "".join(self.objects.by_path[CERTIFICATES]["data"].values())

    def ready(self) -> bool:
        return self.rotator.ready

    def replicas(self, ready: int) -> None:
        self.objects.by_path[DEPLOYMENT] = {"kind": "Deployment", "status": {"readyReplicas": ready}}


@pytest.fixture
async def adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Adapter]:
    objects, authority, clock = Objects(), Authority(), SetClock()
    allowed = json.dumps(["front-proxy-client"])
    data = {"requestheader-client-ca-file": authority.certificate, "requestheader-allowed-names": allowed}
    objects.by_path[AUTHENTICATION] = {"kind": "ConfigMap", "data": data}
    objects.by_path[CERTIFICATES] = {
        "kind": "ConfigMap",
        "metadata": {"name": PLACE.name, "namespace": "system", "resourceVersion": "0"},
    }
    objects.by_path[OWNER] = {"kind": "ClusterRole", "metadata": {"uid": "owner"}}
    server = ApiServer()
    server.answer = objects.answer
    port = find_free_port()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(serving(server, tmp_path, monkeypatch))
        kube = await stack.enter_async_context(KubeClient(request_timeout=5))
        scraper = await stack.enter_async_context(
            Scraper(cache_seconds=10, timeout=0.3, monotonic=clock.monotonic)
        )
        authenticator = FrontProxyAuthenticator()
        runner = web.AppRunner(
            build_application(MetricsApi(kube, scraper, clock.now), authenticator), shutdown_timeout=0.1
        )
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        settings = AdapterSettings(PLACE, "adapter-1", port=port)
        rotator = CertificateRotator(settings, kube, authenticator, TlsListener(runner, port), clock.now)
        cluster = ClusterCache(watches_nodes=False)
        registrar = Registrar(
            kube,
            RegistrationSettings(PLACE),
            Clock(clock.now, clock.monotonic),
            on_providers=cluster.set_metrics_providers,
        )
        yield Adapter(objects, authority, tmp_path, clock, rotator, registrar, cluster, port)


async def test_the_autoscaler_gets_the_depth_of_every_pod_that_exists_and_answers(adapter: Adapter) -> None:
    pods = [Pod("127.0.0.11", 12), Pod("127.0.0.12"), Pod("127.0.0.13", 3)]
    async with answering(*pods) as port:
        adapter.objects.pods = [pod.as_received(f"p{i}", port) for i, pod in enumerate(pods)]
        # Nobody listens there: as a pod whose process has died.
        adapter.objects.pods.append(Pod("127.0.0.14").as_received("silent", 1))
        await adapter.rotator.reconcile()
        code, body = await adapter.ask(DEPTH)
    assert code == 200
    assert body["kind"] == "MetricValueList"
    values = {item["describedObject"]["name"]: item["value"] for item in body["items"]}
    assert values == {"p0": "12", "p1": "0", "p2": "3"}
    selectors = {query["labelSelector"] for query in adapter.objects.pod_queries}
    assert selectors == {"a=b,embedserve.dev/service"}


async def test_pods_are_asked_once_a_period_however_many_ask_and_the_gone_are_forgotten_at_once(
    adapter: Adapter,
) -> None:
    pod = Pod("127.0.0.11", 1)
    async with answering(pod) as port:
        adapter.objects.pods = [pod.as_received("p", port)]
        await adapter.rotator.reconcile()
        await asyncio.gather(*(adapter.ask(DEPTH) for _ in range(3)))
        assert pod.requests == 1
        pod.depth = 2
        adapter.clock.seconds += 11
        _, body = await adapter.ask(DEPTH)
        assert [item["value"] for item in body["items"]] == ["2"]
        adapter.objects.pods = []
        code, refused = await adapter.ask(DEPTH)
    assert (code, refused["reason"]) == (404, "NotFound")


async def test_discovery_is_told_without_asking_any_pod(adapter: Adapter) -> None:
    await adapter.rotator.reconcile()
    for path in (ROOT, "/apis", "/apis/custom.metrics.k8s.io", "/openapi/v2"):
        code, _ = await adapter.ask(path)
        assert code == 200
    assert adapter.objects.pod_queries == []


async def test_only_the_api_server_is_let_in(adapter: Adapter) -> None:
    await adapter.rotator.reconcile()
    code, body = await adapter.ask(ROOT, name="somebody")
    assert (code, body["reason"]) == (401, "Unauthorized")
    for who in ({"name": None}, {"authority": Authority()}):
        with pytest.raises((aiohttp.ClientError, ssl.SSLError)):
            await adapter.ask(ROOT, **who)


async def test_another_authority_of_the_api_server_is_taken_over_while_running(adapter: Adapter) -> None:
    await adapter.rotator.reconcile()
    before, adapter.authority = adapter.authority, Authority()
    adapter.objects.by_path[AUTHENTICATION]["data"]["requestheader-client-ca-file"] = (
        adapter.authority.certificate
    )
    await adapter.rotator.reconcile()
    assert (await adapter.ask(ROOT))[0] == 200
    with pytest.raises((aiohttp.ClientError, ssl.SSLError)):
        await adapter.ask(ROOT, authority=before)


async def test_a_certificate_is_renewed_without_a_restart_and_served_once_it_is_registered(
    adapter: Adapter,
) -> None:
    adapter.replicas(1)
    await adapter.rotator.reconcile()
    assert isinstance(await adapter.registrar.run_once(), Registration)
    await adapter.rotator.reconcile()
    assert adapter.ready()
    first = read_bundle(APIService.parse(adapter.objects.by_path[REGISTERED]))
    adapter.clock.at += timedelta(days=21)
    await adapter.rotator.reconcile()
    await adapter.rotator.reconcile()
    assert first in adapter.bundle(), "the old one is served until the new one is trusted"
    assert isinstance(await adapter.registrar.run_once(), Registration)
    await adapter.rotator.reconcile()
    assert adapter.ready()
    assert first not in adapter.bundle()
    # The bundle holds the new one only, and it is what is served.
    assert (await adapter.ask(ROOT))[0] == 200


async def test_a_replica_is_not_ready_until_the_registration_has_its_certificate(adapter: Adapter) -> None:
    adapter.replicas(1)
    await adapter.rotator.reconcile()
    assert adapter.ready(), "nothing is registered: being ready gets it registered"
    await adapter.registrar.run_once()
    adapter.objects.by_path[REGISTERED]["spec"]["caBundle"] = ""
    await adapter.rotator.reconcile()
    assert not adapter.ready()
    await adapter.registrar.run_once()
    await adapter.rotator.reconcile()
    assert adapter.ready()


async def test_the_registration_is_withdrawn_when_nobody_answers_and_comes_back(adapter: Adapter) -> None:
    adapter.replicas(1)
    await adapter.rotator.reconcile()
    await adapter.registrar.run_once()
    assert await adapter.registrar.run_once() == NoChange(), "what stands is not written again"
    adapter.replicas(0)
    assert isinstance(await adapter.registrar.run_once(), NoChange)
    adapter.clock.seconds += 31
    assert isinstance(await adapter.registrar.run_once(), Withdrawal)
    assert REGISTERED not in adapter.objects.by_path
    adapter.replicas(1)
    assert isinstance(await adapter.registrar.run_once(), Registration)


async def test_where_somebody_else_has_the_group_nothing_is_registered(adapter: Adapter) -> None:
    adapter.replicas(1)
    await adapter.rotator.reconcile()
    name = "v1beta1.custom.metrics.k8s.io"
    service = {"namespace": "monitoring", "name": "prometheus-adapter"}
    adapter.objects.by_path[REGISTERED.replace(API_SERVICE, name)] = {
        "metadata": {"name": name},
        "spec": {"group": "custom.metrics.k8s.io", "service": service},
    }
    decision = await adapter.registrar.run_once()
    assert isinstance(decision, NoChange)
    assert "monitoring/prometheus-adapter" in decision.reason
    (provider,) = adapter.cluster.get_state().metrics_providers
    assert "monitoring/prometheus-adapter" in provider
    assert REGISTERED not in adapter.objects.by_path
