"""A child that the API server refuses keeps back what needs it, and nothing else."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from embedserve_operator.apply.children import ChildApplier
from embedserve_operator.apply.results import ApplyFailure
from embedserve_operator.cache.objects import ObjectCache
from embedserve_operator.errors import UnavailableError
from embedserve_operator.kube.client import KubeClient
from embedserve_operator.kube.objects import Manifest
from embedserve_operator.settings import KedaSettings
from tests.operator.api_server import ApiServer, serving, status
from tests.operator.builders import SETTINGS, UID, Cluster, hub_spec, resource
from tests.operator.cache_builders import cached
from tests.operator.cache_builders import serving as serving_from_cache

QUOTA = status(403, "exceeded quota")


class RefusingServer(ApiServer):
    """Answers every write of some kinds with a refusal, and keeps the others."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: Mapping[str, web.Response] = {}
        self.written: list[str] = []
        self.deleted: list[str] = []
        self.rival = ""
        """The kind of an autoscaler beside which no other is admitted."""
        self.answer = self.keep

    async def keep(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            return status(404, "not found")
        body = json.loads(await request.read())
        if request.method == "DELETE":
            self.deleted.append(request.path.split("/")[-2])
            return web.json_response({"kind": "Status"})
        is_scaler = body["kind"] in ("ScaledObject", "HorizontalPodAutoscaler")
        if is_scaler and self.rival and self.rival not in self.deleted:
            return status(403, "the workload is already managed by another autoscaler")
        if body["kind"] in self.refused:
            refusal = self.refused[body["kind"]]
            return web.Response(body=refusal.body, status=refusal.status, content_type="application/json")
        self.written.append(body["kind"])
        meta = {**body["metadata"], "uid": f"uid-{body['metadata']['name']}", "resourceVersion": "1"}
        return web.json_response({**body, "metadata": meta})


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RefusingServer]:
    refusing_server = RefusingServer()
    async with serving(refusing_server, tmp_path, monkeypatch):
        yield refusing_server


async def apply(cluster: Cluster) -> ApplyFailure | None:
    async with KubeClient(request_timeout=5) as kube:
        return await ChildApplier(kube, ObjectCache()).apply(cluster.plan(), cluster.observed())


NEW = Cluster(resource(hub_spec(replicas=2)))
ALL = {"ConfigMap", "NetworkPolicy", "Deployment", "Service", "PodDisruptionBudget"}


@pytest.mark.parametrize(
    ("refused", "written"),
    [
        ("ConfigMap", {"NetworkPolicy", "PodDisruptionBudget"}),
        ("NetworkPolicy", {"ConfigMap", "PodDisruptionBudget"}),
        ("Deployment", {"ConfigMap", "NetworkPolicy", "PodDisruptionBudget"}),
        ("Service", ALL - {"Service"}),
        ("PodDisruptionBudget", ALL - {"PodDisruptionBudget"}),
    ],
)
async def test_of_a_new_service_everything_is_made_but_what_needs_the_refused_child(
    server: RefusingServer, refused: str, written: set[str]
) -> None:
    server.refused = {refused: QUOTA}
    failure = await apply(NEW)
    assert failure is not None
    assert (failure.reason, failure.is_transient) == ("ChildRefused", True)
    assert set(server.written) == written


CHANGED_CLAIM = serving_from_cache(cached()).changed(
    cached(cache={"volume": {"size": "200Gi"}}, replicas=2, networkPolicy={"clients": [{"podSelector": {}}]})
)


@pytest.mark.parametrize(
    ("refused", "written"),
    [
        ("PersistentVolumeClaim", {"Deployment", "NetworkPolicy"}),
        ("NetworkPolicy", {"PersistentVolumeClaim", "Deployment"}),
    ],
)
async def test_a_child_that_cannot_be_changed_keeps_no_other_from_its_change(
    server: RefusingServer, refused: str, written: set[str]
) -> None:
    server.refused = {refused: QUOTA}
    assert await apply(CHANGED_CLAIM) is not None
    assert set(server.written) == written


SCALED = Cluster(resource(hub_spec(autoscaling={"maxReplicas": 3}))).applied().rolled_out()
NAMED_OTHERWISE = SCALED.changed(
    hub_spec(autoscaling={"maxReplicas": 3}, networkPolicy={"mode": "Disabled"}, prompts={"a": "b"})
)


async def test_what_is_no_longer_wanted_goes_whatever_was_refused_unless_it_serves(
    server: RefusingServer,
) -> None:
    fixed = SCALED.changed(hub_spec(replicas=2))
    server.refused = {"PodDisruptionBudget": QUOTA}
    await apply(fixed)
    assert server.deleted == ["horizontalpodautoscalers"]
    server.deleted.clear()
    server.refused = {"Deployment": QUOTA}
    await apply(NAMED_OTHERWISE)
    assert server.deleted == [], "its successor could not be written"


INVALID = status(422, "is invalid: maxSkew", reason="Invalid", field="spec.template.spec")
WEBHOOK = status(500, 'Internal error occurred: failed calling webhook "x"')


@pytest.mark.parametrize(
    ("refused", "want"),
    [
        pytest.param({"Deployment": INVALID}, ("ChildRefused", False), id="against the rules of the API"),
        pytest.param({"Deployment": WEBHOOK}, ("ChildNotWritten", True), id="a webhook is away"),
        pytest.param(
            {"NetworkPolicy": QUOTA, "PodDisruptionBudget": INVALID},
            ("ChildRefused", False),
            id="of two, the one that only the author can heal",
        ),
    ],
)
async def test_the_failure_says_whether_a_later_try_may_pass(
    server: RefusingServer, refused: dict[str, web.Response], want: tuple[str, bool]
) -> None:
    server.refused = refused
    failure = await apply(NEW)
    assert failure is not None
    assert (failure.reason, failure.is_transient) == want
    for kind in refused:
        assert kind in failure.message


async def test_an_api_server_that_is_away_ends_the_pass(server: RefusingServer) -> None:
    server.refused = {"ConfigMap": status(503, "the server is shutting down")}
    with pytest.raises(UnavailableError):
        await apply(NEW)
    assert "Deployment" not in server.written


async def test_an_autoscaler_goes_before_keda_is_asked_to_take_over_and_the_other_way_round(
    server: RefusingServer,
) -> None:
    keda = replace(SETTINGS, keda=KedaSettings())
    there = replace(SCALED.facts, optional_kinds=frozenset({"ScaledObject"}))
    by_keda = replace(SCALED, settings=keda, facts=there)
    server.rival = "horizontalpodautoscalers"
    assert await apply(by_keda) is None
    assert "ScaledObject" in server.written
    assert "Deployment" not in server.written, "the number of pods is nobody else's business meanwhile"
    server.rival = "scaledobjects"
    server.deleted.clear()
    server.written.clear()
    assert await apply(replace(by_keda.applied(), settings=SETTINGS)) is None
    assert server.deleted == ["scaledobjects", "services"]
    assert server.written == ["HorizontalPodAutoscaler"]


class UnlabelledServer(RefusingServer):
    """Has the Deployment of a service, without the labels by which watches see it."""

    def __init__(self, deployment: Manifest) -> None:
        super().__init__()
        self.deployment = deployment
        self.patched_labels: list[Mapping[str, str]] = []

    async def keep(self, request: web.Request) -> web.StreamResponse:
        if not request.path.endswith(f"/deployments/{self.deployment['metadata']['name']}"):
            return await super().keep(request)
        if request.method == "PATCH" and request.content_type == "application/merge-patch+json":
            body = json.loads(await request.read())
            assert body["metadata"].keys() == {"uid", "labels"}, "nothing else changes"
            self.patched_labels.append(body["metadata"]["labels"])
            return web.json_response(self.deployment)
        return web.json_response(self.deployment) if request.method == "GET" else await super().keep(request)


@pytest.mark.parametrize(
    ("owner", "reason"),
    [pytest.param(UID, None, id="its own"), pytest.param("somebody", "NameTaken", id="of somebody else")],
)
async def test_an_unlabelled_deployment_gets_its_labels_back_and_is_not_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: str, reason: str | None
) -> None:
    cluster = Cluster(resource(hub_spec())).applied().rolled_out().applied().published()
    (deployment,) = (child for child in cluster.children if child["kind"] == "Deployment")
    owners = [{**deployment["metadata"]["ownerReferences"][0], "uid": owner}]
    unlabelled = {
        **deployment,
        "metadata": {**deployment["metadata"], "labels": {}, "ownerReferences": owners},
    }
    server = UnlabelledServer(unlabelled)
    unseen = replace(cluster, children=tuple(c for c in cluster.children if c is not deployment))
    async with serving(server, tmp_path, monkeypatch):
        failure = await apply(unseen)
    assert (failure.reason if failure is not None else None) == reason
    assert len(server.patched_labels) == (0 if reason else 1)
    for labels in server.patched_labels:
        assert "embedserve.dev/service" in labels
        assert labels.items() <= deployment["metadata"]["labels"].items()
    assert "Deployment" not in server.written


class ForeignPinServer(RefusingServer):
    """Has a ConfigMap of somebody else under the name of a pin."""

    def __init__(self, name: str, owner: str) -> None:
        super().__init__()
        self.name, self.owner = name, owner

    async def keep(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET" and request.path.endswith(f"/configmaps/{self.name}"):
            owners = [{"kind": "EmbeddingService", "name": "docs", "uid": self.owner, "controller": True}]
            return web.json_response({"kind": "ConfigMap", "metadata": {"ownerReferences": owners}})
        return await super().keep(request)


@pytest.mark.parametrize(
    ("owner", "reason"),
    [
        pytest.param("somebody", "NameTaken", id="of somebody else"),
        pytest.param(UID, None, id="its own, not seen yet"),
    ],
)
async def test_no_pod_starts_that_would_read_the_pin_of_somebody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: str, reason: str | None
) -> None:
    server = ForeignPinServer(f"docs-{NEW.revision()}-pin", owner)
    async with serving(server, tmp_path, monkeypatch):
        failure = await apply(NEW)
    assert (failure.reason if failure is not None else None) == reason
    assert ("Deployment" in server.written) == (reason is None)
