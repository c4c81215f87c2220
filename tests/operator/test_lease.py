"""Who may lead: decisions about a Lease, by the local clock alone."""

from __future__ import annotations

from typing import Any

import pytest

from embedserve_operator.lease import Sighting, Step, next_step, sight, written
from embedserve_operator.settings import LeaseSettings
from tests.operator.moments import NOON

SETTINGS = LeaseSettings(namespace="system")


def lease(holder: str, *, version: str = "1", duration: int = 15) -> dict[str, Any]:
    return {
        "metadata": {"name": SETTINGS.name, "resourceVersion": version},
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": duration,
            "acquireTime": "2020-01-01T00:00:00.000000Z",
            "renewTime": "2020-01-01T00:00:00.000000Z",
            "leaseTransitions": 4,
        },
    }


@pytest.mark.parametrize(
    ("seen", "now", "want"),
    [
        pytest.param(Sighting(None, 0.0), 0.0, "create", id="there is none"),
        pytest.param(Sighting(lease("me"), 0.0), 100.0, "renew", id="it is ours"),
        pytest.param(Sighting(lease("other"), 0.0), 0.0, "wait", id="another holds it, just seen"),
        pytest.param(Sighting(lease("other"), 0.0), 14.9, "wait", id="another holds it, not run out"),
        pytest.param(Sighting(lease("other"), 0.0), 15.0, "take", id="it did not change for its duration"),
        pytest.param(Sighting(lease(""), 0.0), 0.0, "take", id="it was given back"),
        pytest.param(
            Sighting(lease("other"), 1000.0),
            1001.0,
            "wait",
            id="its own times are years old, our clock counts",
        ),
    ],
)
def test_next_step(seen: Sighting, now: float, want: Step) -> None:
    assert next_step(seen, "me", now) == want


def test_a_renewal_by_its_holder_starts_the_wait_anew() -> None:
    first = sight(None, lease("other", version="1"), 0.0)
    same = sight(first, lease("other", version="1"), 10.0)
    renewed = sight(same, lease("other", version="2"), 12.0)
    assert (same.since, renewed.since) == (0.0, 12.0)


def test_taking_over_counts_and_renewing_does_not() -> None:
    taken = written(lease("other"), SETTINGS, "me", NOON, "take")["spec"]
    renewed = written(lease("me"), SETTINGS, "me", NOON, "renew")["spec"]
    assert (taken["leaseTransitions"], renewed["leaseTransitions"]) == (5, 4)
    assert taken["acquireTime"] == taken["renewTime"] == "2026-01-02T12:00:00.000000Z"
    assert renewed["acquireTime"] == "2020-01-01T00:00:00.000000Z"


def test_a_write_names_the_version_that_was_read_so_that_two_cannot_both_succeed() -> None:
    assert written(lease("other", version="77"), SETTINGS, "me", NOON, "take")["metadata"][
        "resourceVersion"
    ] == ("77")
    assert "resourceVersion" not in written(None, SETTINGS, "me", NOON, "create")["metadata"]


def test_a_leader_stops_before_others_may_take_over() -> None:
    assert SETTINGS.deadline + 2 * SETTINGS.retry < SETTINGS.duration
