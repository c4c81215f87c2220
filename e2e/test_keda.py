"""Services whose number of pods KEDA decides."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.cluster.kubectl import Kubectl
from e2e.cluster.lifecycle import Cluster
from e2e.cluster.polling import wait_until
from e2e.keda import keda
from e2e.load import asking
from e2e.scaled import LONG_TEXT, ready, scaled_spec, upgrade
from e2e.services import PATIENCE_S, Object, Service, condition

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module", autouse=True)
def installed(cluster: Cluster) -> Iterator[None]:
    with keda(cluster):
        upgrade(cluster, "--set", "keda.enabled=true")
        yield
        upgrade(cluster, "--set", "keda.enabled=false")


def during(start: str, end: str) -> Object:
    """A trigger that wants a pod from one time to another."""
    return {
        "type": "cron",
        "metadata": {"timezone": "UTC", "start": start, "end": end, "desiredReplicas": "1"},
    }


def scaled_object(service: Service) -> Object:
    return service.child("scaledobjects")


def test_a_service_grows_with_its_queue_and_shrinks_by_keda(kubectl: Kubectl, scaled: Service) -> None:
    made = scaled_object(scaled)
    assert condition(made, "Ready") is not None
    assert scaled.child("horizontalpodautoscalers")["metadata"]["name"].startswith("keda-hpa-")
    with asking(scaled) as trickle:
        with asking(scaled, threads=60, text=LONG_TEXT) as load:
            scaled.wait_for("three pods", lambda found: ready(found) == 3)
        scaled.wait_for("one pod", lambda found: ready(found) == 1 and found["status"]["replicas"] == 1)
    assert load.failed == trickle.failed == []
    assert load.asked


def test_a_service_that_nobody_wakes_goes_to_zero_and_comes_back(scaled: Service) -> None:
    """The trigger is of KEDA: a time of the day, which is over or never ends."""
    never, always = during("0 0 1 1 *", "1 0 1 1 *"), during("0 0 1 1 *", "59 23 31 12 *")
    scaled.apply(scaled_spec(minReplicas=0, triggers=[never]))
    asleep = scaled.wait_condition("Ready", "False", "ScaledToZero")
    assert asleep["message"] == "its autoscaler sees no work: no pod runs"
    wait_until("no pod runs", lambda: scaled.pods() == [], timeout_s=PATIENCE_S)
    scaled.apply(scaled_spec(minReplicas=0, triggers=[always]))
    scaled.wait_serving()
    assert len(scaled.embed("awake")) == 1
