"""KEDA decides the number of pods."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from embedserve_operator.api.quantities import format_plain_number
from embedserve_operator.plan import ReplicasOwnershipTransfer
from embedserve_operator.settings import KedaSettings
from embedserve_operator.state.nodes import ClusterState
from tests.operator.builders import OTHER_REPO, SETTINGS, Cluster, hub_spec, resource, with_pods

KEDA = replace(SETTINGS, keda=KedaSettings())
INSTALLED = ClusterState(optional_kinds=frozenset({"ScaledObject"}))
CRON = {"type": "cron", "metadata": {"start": "0 6 * * *", "end": "0 20 * * *", "desiredReplicas": "1"}}


def scaled(facts: ClusterState = INSTALLED, **autoscaling: Any) -> Cluster:
    spec = hub_spec(autoscaling={"maxReplicas": 6, **autoscaling})
    return Cluster(resource(spec), facts=facts, settings=KEDA)


def child(cluster: Cluster, kind: str, name: str | None = None) -> Any:
    (manifest,) = [
        c
        for c in cluster.plan().children
        if c["kind"] == kind and (name is None or c["metadata"]["name"] == name)
    ]
    return manifest["spec"]


def of_keda(cluster: Cluster, **status: Any) -> Cluster:
    """After KEDA made its autoscaler of the ScaledObject, and that looked."""
    (maker,) = [c for c in cluster.children if c["kind"] == "ScaledObject"]
    autoscaler = {
        "kind": "HorizontalPodAutoscaler",
        "metadata": {
            "name": f"keda-hpa-{maker['metadata']['name']}",
            "namespace": "search",
            "uid": "uid-keda",
            "labels": maker["metadata"]["labels"],
            "ownerReferences": [
                {"kind": "ScaledObject", "uid": maker["metadata"]["uid"], "controller": True}
            ],
        },
        "spec": {"scaleTargetRef": maker["spec"]["scaleTargetRef"]},
        "status": status,
    }
    return replace(cluster, children=(*cluster.children, autoscaler))


def test_a_scaled_object_takes_the_place_of_the_autoscaler_and_the_number_is_handed_over() -> None:
    cluster = scaled(minReplicas=2)
    name = f"docs-{cluster.revision()}"
    scaled_object = child(cluster, "ScaledObject")
    assert scaled_object["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}
    assert (scaled_object["minReplicaCount"], scaled_object["maxReplicaCount"]) == (2, 6)
    assert (
        scaled_object["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleUp"]["selectPolicy"]
        == "Max"
    )
    assert cluster.plan().ownership_transfers == (ReplicasOwnershipTransfer(name, 2),)
    assert cluster.applied().names("HorizontalPodAutoscaler") == []


def test_it_asks_every_pod_by_a_service_of_the_management_ports() -> None:
    cluster = scaled(metric="queueSeconds", target="500m")
    (trigger,) = child(cluster, "ScaledObject")["triggers"]
    assert trigger == {
        "type": "metrics-api",
        "metadata": {
            "url": "http://docs-metrics.search.svc:8081/metrics",
            "format": "prometheus",
            "valueLocation": "embedserve_queue_seconds",
            "targetValue": "0.5",
            "aggregateFromKubeServiceEndpoints": "true",
            "aggregationType": "sum",
        },
    }
    service = child(cluster, "Service", "docs-metrics")
    assert service["clusterIP"] == "None"
    assert service["selector"] == child(cluster, "Service", "docs")["selector"]
    # KEDA looks for the port of the pods, and takes 80 where it does not find it.
    assert [port["port"] for port in service["ports"]] == [8081]


def test_or_it_asks_a_prometheus() -> None:
    settings = replace(SETTINGS, keda=KedaSettings("http://prometheus.monitoring:9090"))
    cluster = replace(scaled(), settings=settings)
    (trigger,) = child(cluster, "ScaledObject")["triggers"]
    assert trigger == {
        "type": "prometheus",
        "metadata": {
            "serverAddress": "http://prometheus.monitoring:9090",
            "query": f'sum(embedserve_queue_depth{{namespace="search",pod=~"docs-{cluster.revision()}-.*"}})',
            "threshold": "64",
        },
    }
    assert cluster.applied().names("Service") == ["docs"]


def test_a_service_without_work_may_go_to_zero_and_starts_with_one_pod() -> None:
    cluster = scaled(
        minReplicas=0,
        triggers=[CRON],
        behavior={"scaleDown": {"stabilizationWindowSeconds": 60}},
    )
    assert child(cluster, "ScaledObject")["minReplicaCount"] == 0
    assert child(cluster, "ScaledObject")["cooldownPeriod"] == 60
    assert child(cluster, "ScaledObject")["triggers"][1:] == [CRON]
    (transfer,) = cluster.plan().ownership_transfers
    assert transfer.replicas == 1, "a model has to be seen to load"
    asleep = cluster.applied()
    conditions = with_pods(asleep, 0).rolled_out().conditions()
    assert set(conditions) == {"Ready"}
    assert (conditions["Ready"].reason, conditions["Ready"].message) == (
        "ScaledToZero",
        "its autoscaler sees no work: no pod runs",
    )


def test_what_the_autoscaler_of_keda_says_is_told() -> None:
    looked = of_keda(
        scaled().applied(),
        currentReplicas=3,
        desiredReplicas=4,
        currentMetrics=[{"type": "External", "external": {"current": {"averageValue": "80"}}}],
        conditions=[{"type": "ScalingActive", "status": "True", "reason": "ValidMetricFound"}],
    ).rolled_out()
    status = looked.status()
    assert status.autoscaling is not None
    assert (status.autoscaling.current_replicas, status.autoscaling.desired_replicas) == (3, 4)
    assert status.autoscaling.value == "80"
    assert looked.conditions()["ScalingActive"].status == "True"
    assert not [c for c in looked.plan().prune if c.ref.kind == "HorizontalPodAutoscaler"], "it is KEDA's"


def test_an_autoscaler_of_keda_that_gets_no_metric_names_what_it_reads() -> None:
    condition = of_keda(
        scaled().applied(),
        conditions=[
            {
                "type": "ScalingActive",
                "status": "False",
                "reason": "FailedGetExternalMetric",
                "message": "no answer",
            }
        ],
    ).conditions()["ScalingActive"]
    assert (condition.status, condition.reason) == ("False", "MetricsUnavailable")
    assert "it reads embedserve_queue_depth from the pods' management ports" in condition.message


def test_without_keda_in_the_cluster_the_number_stays_and_the_condition_says_what_to_do() -> None:
    cluster = with_pods(scaled(facts=ClusterState()).applied(), 1).rolled_out()
    assert cluster.names("ScaledObject") == []
    conditions = cluster.conditions()
    assert conditions["Ready"].status == "True"
    assert (conditions["ScalingActive"].status, conditions["ScalingActive"].reason) == (
        "False",
        "KedaMissing",
    )


def test_the_one_that_serves_keeps_its_scaled_object_until_the_switch() -> None:
    old = with_pods(scaled().applied(), 2).rolled_out().published()
    change = old.changed({**old.resource["spec"], "model": hub_spec(OTHER_REPO)["model"]}).applied()
    assert change.names("ScaledObject") == [f"docs-{old.revision()}"]
    switched = with_pods(change, 2).rolled_out().applied()
    assert f"docs-{change.revision()}" in switched.names("ScaledObject")


@pytest.mark.parametrize(
    ("settings", "autoscaling", "reason"),
    [
        pytest.param(SETTINGS, {"triggers": [CRON]}, "KedaNeeded", id="triggers without KEDA"),
        pytest.param(SETTINGS, {"triggers": [CRON], "minReplicas": 0}, "KedaNeeded", id="zero without KEDA"),
        pytest.param(KEDA, {"metrics": [{"type": "Resource"}]}, "KedaDecides", id="metrics with KEDA"),
    ],
)
def test_fields_of_the_other_autoscaler_are_refused(
    settings: Any, autoscaling: dict[str, Any], reason: str
) -> None:
    conditions = replace(scaled(**autoscaling), settings=settings).conditions()
    assert conditions["Stalled"].reason == reason


@pytest.mark.parametrize(
    ("quantity", "number"),
    [("64", "64"), ("500m", "0.5"), ("1.5", "1.5"), ("2k", "2000"), ("1Ki", "1024"), ("1e2", "100")],
)
def test_a_quantity_becomes_a_plain_number(quantity: str, number: str) -> None:
    assert format_plain_number(quantity) == number
