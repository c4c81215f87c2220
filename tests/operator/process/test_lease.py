"""Who may lead: decisions about a Lease, by the local clock alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from embedserve_operator.clock import Clock
from embedserve_operator.kube.client import KubeClient
from embedserve_operator.kube.objects import Manifest
from embedserve_operator.kube.views.cluster import Lease
from embedserve_operator.process.lease import (
    Candidate,
    LeaderElector,
    LeaseObservation,
    LeaseStep,
    build_lease,
    choose_step,
    compute_generation,
    observe_lease,
)
from embedserve_operator.settings import LeaseSettings
from tests.operator.moments import NOON

SETTINGS = LeaseSettings(namespace="system")


def lease(holder: str, *, version: str = "1", duration: int = 15) -> Lease:
    content = {
        "metadata": {"name": SETTINGS.name, "resourceVersion": version},
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": duration,
            "acquireTime": "2020-01-01T00:00:00.000000Z",
            "renewTime": "2020-01-01T00:00:00.000000Z",
            "leaseTransitions": 4,
        },
    }
    return Lease.parse(content)


@pytest.mark.parametrize(
    ("observation", "now", "want"),
    [
        pytest.param(LeaseObservation(None, 0.0), 0.0, "create", id="there is none"),
        pytest.param(LeaseObservation(lease("me"), 0.0), 100.0, "renew", id="it is ours"),
        pytest.param(LeaseObservation(lease("other"), 0.0), 0.0, "wait", id="another holds it, just seen"),
        pytest.param(LeaseObservation(lease("other"), 0.0), 14.9, "wait", id="another holds it, not run out"),
        pytest.param(
            LeaseObservation(lease("other"), 0.0), 15.0, "take", id="it did not change for its duration"
        ),
        pytest.param(LeaseObservation(lease(""), 0.0), 0.0, "take", id="it was given back"),
        pytest.param(
            LeaseObservation(lease("other"), 1000.0),
            1001.0,
            "wait",
            id="its own times are years old, our clock counts",
        ),
    ],
)
def test_next_step(observation: LeaseObservation, now: float, want: LeaseStep) -> None:
    assert choose_step(observation, "me", now) == want


def test_a_renewal_by_its_holder_starts_the_wait_anew() -> None:
    first = observe_lease(None, lease("other", version="1"), 0.0)
    same = observe_lease(first, lease("other", version="1"), 10.0)
    renewed = observe_lease(same, lease("other", version="2"), 12.0)
    assert (same.since, renewed.since) == (0.0, 12.0)


def test_taking_over_counts_and_renewing_does_not() -> None:
    acquired = build_lease(lease("other"), SETTINGS, "me", NOON, "take")["spec"]
    renewed = build_lease(lease("me"), SETTINGS, "me", NOON, "renew")["spec"]
    assert (acquired["leaseTransitions"], renewed["leaseTransitions"]) == (5, 4)
    assert acquired["acquireTime"] == acquired["renewTime"] == "2026-01-02T12:00:00.000000Z"
    assert renewed["acquireTime"] == "2020-01-01T00:00:00.000000Z"


@pytest.mark.parametrize(
    ("before", "clock"),
    [
        pytest.param(lease("other"), NOON, id="of another holder"),
        pytest.param(lease("other"), datetime(2019, 1, 1, tzinfo=UTC), id="by a clock that is late"),
        pytest.param(lease(""), datetime(2020, 1, 1, tzinfo=UTC), id="at once"),
        pytest.param(None, NOON, id="that somebody has deleted"),
    ],
)
def test_each_leader_has_a_greater_generation_than_the_one_before(
    before: Lease | None, clock: datetime
) -> None:
    step: LeaseStep = "create" if before is None else "take"
    acquired = Lease.parse(build_lease(before, SETTINGS, "me", clock, step))
    renewed = Lease.parse(build_lease(acquired, SETTINGS, "me", NOON + timedelta(hours=1), "renew"))
    assert compute_generation(lease("other")) < compute_generation(acquired)
    assert compute_generation(acquired) == compute_generation(renewed)


def test_a_write_names_the_version_that_was_read_so_that_two_cannot_both_succeed() -> None:
    assert build_lease(lease("other", version="77"), SETTINGS, "me", NOON, "take")["metadata"][
        "resourceVersion"
    ] == ("77")
    assert "resourceVersion" not in build_lease(None, SETTINGS, "me", NOON, "create")["metadata"]


def test_a_leader_stops_before_others_may_take_over() -> None:
    assert SETTINGS.deadline + 2 * SETTINGS.retry < SETTINGS.duration


class _ApiServer(KubeClient):
    """Stores one Lease; counts the writes that reach it."""

    def __init__(self) -> None:
        self.stored: Lease | None = None
        self.writes: list[str] = []

    async def get_lease(self, namespace: str, name: str) -> Lease | None:
        return self.stored

    async def create_lease(self, namespace: str, content: Manifest) -> Lease:
        return self._store(content)

    async def replace_lease(self, namespace: str, content: Manifest) -> Lease:
        return self._store(content)

    def _store(self, content: Manifest) -> Lease:
        self.writes.append(content["spec"]["holderIdentity"])
        content["metadata"]["resourceVersion"] = str(len(self.writes))
        self.stored = Lease.parse(content)
        return self.stored


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        pytest.param(0.0, ["me", ""], id="a leader gives the Lease back"),
        pytest.param(SETTINGS.deadline, ["me"], id="one whose deadline has passed leaves it to run out"),
    ],
)
async def test_only_a_leader_writes_the_lease_at_its_end(seconds: float, written: list[str]) -> None:
    server, passed = _ApiServer(), [0.0]
    elector = LeaderElector(server, SETTINGS, Candidate("me"), Clock(lambda: NOON, lambda: passed[0]))
    await elector.acquire()
    passed[0] = seconds
    await elector.release()
    assert server.writes == written
