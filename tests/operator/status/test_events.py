"""Events: one for what is new, none for what was told."""

from __future__ import annotations

from dataclasses import replace

from embedserve_operator.kube.objects import Manifest
from embedserve_operator.status.events import build_events
from tests.operator.builders import Cluster, failed
from tests.operator.moments import LATER, NOON

BROKEN = failed("ModelNotFound", "no repository a/b", retryable=False)


def events(cluster: Cluster) -> list[Manifest]:
    observed = cluster.observed()
    return build_events(observed.resource, replace(cluster, now=int(LATER.timestamp())).status(), LATER)


def test_a_failure_is_one_warning_although_two_conditions_tell_it() -> None:
    (event,) = events(Cluster().applied().published().started(BROKEN))
    assert (event["type"], event["reason"], event["message"]) == (
        "Warning",
        "ModelNotFound",
        "no repository a/b",
    )
    assert event["involvedObject"]["kind"] == "EmbeddingService"
    assert event["metadata"]["namespace"] == "search"


def test_what_was_published_is_not_told_again() -> None:
    assert events(Cluster().applied().started(BROKEN).published()) == []


def test_serving_is_told_as_normal() -> None:
    (event,) = events(Cluster().applied().published().rolled_out())
    assert (event["type"], event["reason"]) == ("Normal", "Serving")
    assert event["firstTimestamp"] == LATER.strftime("%Y-%m-%dT%H:%M:%SZ") != NOON
