"""Answers of the API server as errors of ours, and leadership over real connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from embedserve_operator.api.types import build_class_selector
from embedserve_operator.clock import Clock
from embedserve_operator.errors import (
    ApiError,
    ConflictError,
    FailedRequestError,
    InvalidContentError,
    LeaseLostError,
    RefusedError,
    UnavailableError,
)
from embedserve_operator.kube.client import KubeClient
from embedserve_operator.kube.references import ChildRef
from embedserve_operator.process.lease import Candidate, LeaderElector
from embedserve_operator.settings import LeaseSettings
from tests.operator.api_server import ApiServer, serving, status
from tests.operator.moments import NOON

# The Lease counts in whole seconds.
CLOCK = Clock(now=lambda: NOON)
LEASE = LeaseSettings(namespace="system", duration=1.0, deadline=0.5, retry=0.1)
MANIFEST = {"kind": "Service", "metadata": {"name": "docs", "namespace": "search"}}


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ApiServer]:
    async with serving(ApiServer(), tmp_path, monkeypatch) as api_server:
        yield api_server


@pytest.mark.parametrize(
    ("answer", "want"),
    [
        pytest.param(status(429, "too many requests"), UnavailableError, id="too busy"),
        pytest.param(
            status(500, 'Internal error occurred: failed calling webhook "x"'),
            FailedRequestError,
            id="a webhook",
        ),
        pytest.param(web.Response(status=500, text="panic"), UnavailableError, id="broken"),
        pytest.param(
            status(500, 'failed to create typed patch object (a/b): duplicate entries for key [name="x"]'),
            InvalidContentError,
            id="two items with one key",
        ),
        pytest.param(
            status(400, 'strict decoding error: unknown field "spec.x"'),
            InvalidContentError,
            id="an unknown field",
        ),
        pytest.param(
            status(422, "is invalid", reason="Invalid", field="spec.template.spec"),
            InvalidContentError,
            id="against the API's rules",
        ),
        pytest.param(
            status(422, "a policy denied the request", reason="Invalid"), RefusedError, id="against a policy"
        ),
        pytest.param(web.Response(status=502, text="<html>"), UnavailableError, id="a proxy's page"),
        pytest.param(web.Response(status=200, text="<html>"), UnavailableError, id="a page for an answer"),
        pytest.param(status(403, "no right"), RefusedError, id="no right"),
        pytest.param(status(422, "invalid"), RefusedError, id="refused content"),
        pytest.param(status(409, "conflict"), ConflictError, id="a conflict"),
        pytest.param(status(401, "who are you"), ApiError, id="unknown"),
    ],
)
async def test_an_answer_becomes_its_error(
    server: ApiServer, answer: web.Response, want: type[ApiError]
) -> None:
    async def say(_request: web.Request) -> web.StreamResponse:
        return answer

    server.answer = say
    async with KubeClient(request_timeout=5) as kube:
        with pytest.raises(ApiError) as caught:
            await kube.apply(MANIFEST, force=False)
    assert type(caught.value) is want
    assert len(server.requests) == 1, "whether to try again is the queue's decision"


async def test_a_server_that_does_not_answer_is_given_up(server: ApiServer) -> None:
    async def never(_request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    server.answer = never
    async with KubeClient(request_timeout=0.1) as kube:
        with pytest.raises(UnavailableError):
            await kube.get("search", ChildRef("Service", "docs"))


async def test_only_watched_namespaces_are_listed(server: ApiServer) -> None:
    async def empty(_request: web.Request) -> web.StreamResponse:
        return web.json_response({"items": []})

    server.answer = empty
    async with KubeClient(request_timeout=5, namespaces=("a", "b")) as kube:
        await kube.list_versions("Deployment", "x")
        await kube.list_versions("EmbeddingService", "x")
    assert server.requests == [
        "GET /apis/apps/v1/namespaces/a/deployments?labelSelector=x&limit=100",
        "GET /apis/apps/v1/namespaces/b/deployments?labelSelector=x&limit=100",
        "GET /apis/embedserve.dev/v1alpha1/namespaces/a/embeddingservices?limit=100",
        "GET /apis/embedserve.dev/v1alpha1/namespaces/b/embeddingservices?limit=100",
    ]


def elector(kube: KubeClient, me: str) -> LeaderElector:
    return LeaderElector(kube, LEASE, Candidate(me), CLOCK)


async def test_one_of_two_leads_and_the_other_takes_over_what_is_given_back(server: ApiServer) -> None:
    async with KubeClient(request_timeout=5) as kube:
        first, second = elector(kube, "first"), elector(kube, "second")
        await first.acquire()
        waiting = asyncio.create_task(second.acquire())
        await first.release()
        await waiting
    assert server.lease is not None
    assert server.lease["spec"]["holderIdentity"] == "second"
    assert server.lease["spec"]["leaseTransitions"] == 1


async def test_a_leader_that_vanished_is_followed_when_its_lease_has_run_out(server: ApiServer) -> None:
    async with KubeClient(request_timeout=5) as kube:
        await elector(kube, "killed").acquire()
        await elector(kube, "next").acquire()
    assert server.lease is not None
    assert server.lease["spec"]["holderIdentity"] == "next"


async def test_behind_a_dead_connection_the_old_leader_stops_before_the_new_one_begins(
    server: ApiServer,
) -> None:
    clock = asyncio.get_running_loop().time
    async with KubeClient(request_timeout=5) as kube:
        old, new = elector(kube, "old"), elector(kube, "new")
        await old.acquire()
        server.deaf.add("old")

        async def stopped_at() -> float:
            with pytest.raises(LeaseLostError):
                await old.renew()
            return clock()

        async def began_at() -> float:
            await new.acquire()
            return clock()

        stopped, began = await asyncio.gather(stopped_at(), began_at())
    assert stopped < began


async def test_a_deleted_lease_is_made_anew_by_its_holder(server: ApiServer) -> None:
    async with KubeClient(request_timeout=5) as kube:
        leading = elector(kube, "first")
        await leading.acquire()
        server.forget()
        server.created.clear()
        keeping = asyncio.create_task(leading.renew())
        await server.created.wait()
        keeping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await keeping
    assert server.lease is not None
    assert server.lease["spec"]["holderIdentity"] == "first"


async def test_who_may_no_longer_lead_reads_and_tries_for_the_lease_and_writes_nothing(
    server: ApiServer,
) -> None:
    async def ready(_request: web.Request) -> web.StreamResponse:
        return web.json_response({"items": []})

    async with KubeClient(request_timeout=5) as kube:
        unhurried = LeaseSettings(namespace="system", deadline=600.0)
        first = LeaderElector(kube, unhurried, Candidate("first"), CLOCK)
        kube.restrict_writes(first.is_leader)
        with pytest.raises(UnavailableError, match="may no longer lead"):
            await kube.apply(MANIFEST, force=False)
        await first.acquire()
        server.answer = ready
        await kube.apply(MANIFEST, force=False)
        kube.restrict_writes(lambda: False)
        await kube.get("search", ChildRef("Service", "docs"))
        with pytest.raises(UnavailableError, match="may no longer lead"):
            await kube.create(MANIFEST)
    assert [request.split()[0] for request in server.requests] == ["GET", "POST", "PATCH", "GET"]


async def test_who_waits_looks_when_the_lease_runs_out_and_not_a_whole_pause_later(server: ApiServer) -> None:
    """With a pause of an hour it would otherwise never see the end of a Lease of one second."""
    patient = LeaseSettings(namespace="system", duration=1.0, deadline=0.5, retry=0.1, poll_interval=3600.0)
    async with KubeClient(request_timeout=5) as kube:
        await elector(kube, "first").acquire()
        second = LeaderElector(kube, patient, Candidate("second"), CLOCK)
        async with asyncio.timeout(60):
            await second.acquire()
    assert server.lease is not None
    assert server.lease["spec"]["holderIdentity"] == "second"


async def test_a_leader_behind_a_slow_api_server_leads_on(server: ApiServer) -> None:
    """Each answer takes five times as long as the pause between two renewals, as 10 s do beside 2 s."""
    slow = LeaseSettings(namespace="system", duration=600.0, deadline=500.0, retry=0.02, poll_interval=0.02)
    renewals = asyncio.Event()

    async def answer_late(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(5 * slow.retry)
        server.answer = None
        answer = await server.handle(request)
        server.answer = answer_late
        if sum(request.startswith("PUT") for request in server.requests) > 6:
            renewals.set()
        return answer

    server.answer = answer_late
    async with KubeClient(request_timeout=60) as kube, asyncio.timeout(120):
        first = LeaderElector(kube, slow, Candidate("first"), CLOCK)
        await first.acquire()
        keeping = asyncio.create_task(first.renew())
        await renewals.wait()
        assert first.is_leader()
        keeping.cancel()


@pytest.mark.parametrize(
    ("operator_class", "selector"),
    [("", "%21embedserve.dev/operator-class"), ("gpu", "embedserve.dev/operator-class%3Dgpu")],
)
async def test_only_the_resources_of_the_operator_s_class_are_listed(
    server: ApiServer, operator_class: str, selector: str
) -> None:
    async def empty(_request: web.Request) -> web.StreamResponse:
        return web.json_response({"items": []})

    server.answer = empty
    async with KubeClient(request_timeout=5, resource_selector=build_class_selector(operator_class)) as kube:
        await kube.list_versions("EmbeddingService", "x")
        await kube.list_versions("Deployment", "x")
    root = "GET /apis/embedserve.dev/v1alpha1/embeddingservices?labelSelector="
    assert [request.replace("!", "%21") for request in server.requests] == [
        f"{root}{selector}&limit=100",
        "GET /apis/apps/v1/deployments?labelSelector=x&limit=100",
    ]
