"""Services that follow their load: what the tests of every autoscaler share."""

from __future__ import annotations

import os

from e2e.cluster.lifecycle import Cluster
from e2e.cluster.shell import run
from e2e.demo.release import CHART, OPERATOR_NAMESPACE, RELEASE
from e2e.services import Object, hub_spec

LONG_TEXT = "A sentence that is long enough to be some work, and is asked for again and again. " * 4


def scaled_spec(**more: object) -> Object:
    """Small pods, small batches, quick down: so that a small load needs several, and a test does not wait for long.

    Not so quick that a moment without a queue, while pods start, would take them away again.
    """
    down = {
        "stabilizationWindowSeconds": 30,
        "policies": [{"type": "Percent", "value": 100, "periodSeconds": 5}],
    }
    autoscaling = {"minReplicas": 1, "maxReplicas": 3, "target": 8, "behavior": {"scaleDown": down}, **more}
    return hub_spec(
        autoscaling=autoscaling,
        batching={"maxBatchTokens": 256},
        resources={"requests": {"cpu": "100m"}, "limits": {"cpu": "400m"}},
    )


def upgrade(cluster: Cluster, *flags: str) -> None:
    words = ["upgrade", RELEASE, str(CHART), "--namespace", OPERATOR_NAMESPACE, "--reuse-values", "--wait"]
    environment = {**os.environ, "KUBECONFIG": str(cluster.layout.admin_kubeconfig)}
    run([str(cluster.helm), *words, *flags], environment=environment, timeout_s=240)


def ready(resource: Object) -> int:
    return int(resource["status"].get("readyReplicas", 0))


def somebody_elses_api() -> Object:
    """An APIService of the metrics' group that leads to another adapter than ours."""
    return {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": "v1beta1.custom.metrics.k8s.io"},
        "spec": {
            "group": "custom.metrics.k8s.io",
            "version": "v1beta1",
            "groupPriorityMinimum": 100,
            "versionPriority": 10,
            "insecureSkipTLSVerify": True,
            "service": {"namespace": "monitoring", "name": "prometheus-adapter", "port": 443},
        },
    }
