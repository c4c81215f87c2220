"""Services whose number of pods KEDA decides."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from e2e.cluster.lifecycle import Cluster
from e2e.cluster.polling import wait_until
from e2e.cluster.shell import run
from e2e.demo.release import CHART, RELEASE
from e2e.keda import keda
from e2e.load import asking
from e2e.prometheus import prometheus
from e2e.scaled import LONG_TEXT, ready, scaled_spec, upgrade
from e2e.services import TIMEOUT_S, Object, Service, condition

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


def test_a_service_grows_with_its_queue_and_shrinks_by_keda(scaled: Service) -> None:
    manifest = scaled_object(scaled)
    assert condition(manifest, "Ready") is not None
    assert manifest["spec"]["triggers"][0]["type"] == "metrics-api"
    assert scaled.child("horizontalpodautoscalers")["metadata"]["name"].startswith("keda-hpa-")
    grows_and_shrinks(scaled)


def grows_and_shrinks(scaled: Service) -> None:
    with asking(scaled) as trickle:
        with asking(scaled, threads=60, text=LONG_TEXT) as load:
            scaled.wait_for("three pods", lambda resource: ready(resource) == 3)
        scaled.wait_for(
            "one pod", lambda resource: ready(resource) == 1 and resource["status"]["replicas"] == 1
        )
    assert load.failed == trickle.failed == []
    assert load.asked


def test_a_service_grows_and_shrinks_by_what_a_prometheus_tells_keda(
    cluster: Cluster, scaled: Service, tmp_path: Path
) -> None:
    with prometheus(cluster, tmp_path) as server:
        upgrade(cluster, "--set", f"keda.prometheusAddress={server.url}")
        try:
            wait_until(
                "the trigger is Prometheus",
                lambda: scaled_object(scaled)["spec"]["triggers"][0]["type"] == "prometheus",
                timeout_s=TIMEOUT_S,
            )
            grows_and_shrinks(scaled)
            # A value for each pod, a zero as well: without one the autoscaler would know nothing of it.
            want = [(pod["metadata"]["name"], 0.0) for pod in scaled.pods()]
            for query in adapter_queries(cluster, scaled):
                wait_until(
                    f"a value for each pod: {query}",
                    lambda query=query: (
                        [(series_labels["pod"], value) for series_labels, value in server.values(query)]
                        == want
                    ),  # type: ignore[misc]
                    timeout_s=TIMEOUT_S,
                )
        finally:
            upgrade(cluster, "--set", "keda.prometheusAddress=")


def adapter_queries(cluster: Cluster, service: Service) -> list[str]:
    """Return what a prometheus-adapter with the chart's rules asks for the pods of a service."""
    # Without a cluster helm takes its own idea of a version, which is older than the chart takes.
    flags = ["--kube-version", "1.34", "--set", "prometheusAdapter.rules=true"]
    flags += ["--show-only", "templates/prometheus-adapter-rules.yaml"]
    rendered = run([str(cluster.helm), "template", RELEASE, str(CHART), *flags])
    rules = yaml.safe_load(yaml.safe_load(rendered)["data"]["config.yaml"])["rules"]
    names = "|".join(pod["metadata"]["name"] for pod in service.pods())
    return [
        rule["metricsQuery"]
        .replace("<<.Series>>", rule["seriesQuery"].partition("{")[0])
        .replace("<<.LabelMatchers>>", f'namespace="{service.namespace}",pod=~"{names}"')
        .replace("<<.GroupBy>>", "pod")
        for rule in rules
    ]


def test_a_service_that_nobody_wakes_goes_to_zero_and_comes_back(scaled: Service) -> None:
    """The trigger is of KEDA: a time of the day, which is over or never ends."""
    never, always = during("0 0 1 1 *", "1 0 1 1 *"), during("0 0 1 1 *", "59 23 31 12 *")
    scaled.apply(scaled_spec(minReplicas=0, triggers=[never]))
    asleep = scaled.wait_condition("Ready", "True", "ScaledToZero")
    assert asleep["message"] == "its autoscaler sees no work: no pod runs"
    wait_until("no pod runs", lambda: scaled.pods() == [], timeout_s=TIMEOUT_S)
    scaled.apply(scaled_spec(minReplicas=0, triggers=[always]))
    scaled.wait_serving()
    assert len(scaled.embed("awake")) == 1


def test_a_service_changes_its_autoscaler_and_back_without_losing_a_pod(
    cluster: Cluster, scaled: Service
) -> None:
    """From KEDA to a HorizontalPodAutoscaler of the operator's own, and to KEDA again."""
    scaled.apply(scaled_spec(minReplicas=2))
    scaled.wait_for("two pods", lambda resource: ready(resource) == 2)
    replicas: list[int] = []

    def is_scaled_by(keda_decides: bool) -> bool:
        (deployment,) = scaled.children("deployments")
        replicas.append(deployment["spec"]["replicas"])
        autoscalers = [
            autoscaler["metadata"]["name"] for autoscaler in scaled.children("horizontalpodautoscalers")
        ]
        has_object = bool(scaled.children("scaledobjects"))
        by_keda = [name.startswith("keda-hpa-") for name in autoscalers]
        return has_object is keda_decides and by_keda == [keda_decides]

    with asking(scaled) as load:
        for keda_decides in (False, True):
            began = time.monotonic()
            upgrade(cluster, "--set", f"keda.enabled={str(keda_decides).lower()}")
            wait_until(
                f"{'KEDA' if keda_decides else 'the operator'} decides",
                lambda by=keda_decides: is_scaled_by(by),  # type: ignore[misc]
                timeout_s=TIMEOUT_S,
            )
            print(
                f"\nwith the chart's upgrade, {time.monotonic() - began:.0f} s until one autoscaler was left"
            )
        scaled.wait_condition("ScalingActive", "True", "Scaling")
    assert load.failed == []
    assert min(replicas) >= 2
