"""Builds the ScaledObject of one revision's Deployment, where KEDA decides the number of pods, and
the Service that KEDA reads the pods by.

KEDA makes a HorizontalPodAutoscaler of it, which carries our labels, and answers its queries itself.
"""

from __future__ import annotations

from embedserve_operator.api.quantities import format_plain_number
from embedserve_operator.api.types import Autoscaling, EmbeddingServiceSpec
from embedserve_operator.kube.objects import Manifest
from embedserve_operator.manifests.autoscaler import METRICS, find_target_value, merge_behavior
from embedserve_operator.manifests.deployment import build_deployment_name
from embedserve_operator.manifests.metadata import add_fingerprint, build_metadata, build_selector
from embedserve_operator.manifests.runtime_config import MANAGEMENT_PORT
from embedserve_operator.settings import KedaSettings
from embedserve_operator.state.resource import Resource

_DEFAULT_COOLDOWN_SECONDS = 300
"""The default of KEDA and of the autoscaler alike."""


def build_scaled_object(
    resource: Resource, spec: EmbeddingServiceSpec, keda: KedaSettings, revision: str
) -> Manifest | None:
    """Return the ScaledObject; None when the number of pods is fixed."""
    autoscaling = spec.autoscaling
    if autoscaling is None or spec.suspend:
        return None
    name = build_deployment_name(resource, revision)
    behavior = merge_behavior(autoscaling)
    trigger = (
        _build_prometheus_trigger(resource, autoscaling, keda, revision)
        if keda.prometheus
        else _build_pod_trigger(resource, autoscaling)
    )
    return add_fingerprint(
        {
            "apiVersion": "keda.sh/v1alpha1",
            "kind": "ScaledObject",
            "metadata": build_metadata(resource, name, revision),
            "spec": {
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
                "minReplicaCount": autoscaling.min_replicas,
                "maxReplicaCount": autoscaling.max_replicas,
                **(
                    {} if autoscaling.min_replicas else {"cooldownPeriod": _choose_cooldown_seconds(behavior)}
                ),
                "advanced": {"horizontalPodAutoscalerConfig": {"behavior": behavior}},
                # Our trigger comes first, since the status reports its value.
                "triggers": [trigger, *(autoscaling.triggers or ())],
            },
        }
    )


def _choose_cooldown_seconds(behavior: Manifest) -> int:
    """Return the seconds without work before the last pod goes: as long as an autoscaler waits before any
    other.
    """
    seconds = behavior["scaleDown"].get("stabilizationWindowSeconds")
    return seconds if isinstance(seconds, int) else _DEFAULT_COOLDOWN_SECONDS


def build_metrics_service(resource: Resource, spec: EmbeddingServiceSpec, revision: str) -> Manifest | None:
    """Return the headless Service by which KEDA finds the management ports of the pods of a revision."""
    if spec.autoscaling is None or spec.suspend:
        return None
    return add_fingerprint(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": build_metadata(resource, build_metrics_service_name(resource)),
            "spec": {
                "clusterIP": "None",
                "selector": build_selector(resource, revision),
                "ports": [
                    {
                        "name": "management",
                        "port": MANAGEMENT_PORT,
                        "protocol": "TCP",
                        "targetPort": "management",
                        "appProtocol": "http",
                    }
                ],
            },
        }
    )


def build_metrics_service_name(resource: Resource) -> str:
    """Return the name of the Service of the management ports."""
    return f"{resource.key.name}-metrics"


def _build_pod_trigger(resource: Resource, autoscaling: Autoscaling) -> Manifest:
    """Return the trigger by which KEDA asks every ready pod; the sum divided by the number of pods is the
    average of a pod.
    """
    host = f"{build_metrics_service_name(resource)}.{resource.key.namespace}.svc"
    return {
        "type": "metrics-api",
        "metadata": {
            "url": f"http://{host}:{MANAGEMENT_PORT}/metrics",
            "format": "prometheus",
            "valueLocation": METRICS[autoscaling.metric],
            "targetValue": format_plain_number(find_target_value(autoscaling)),
            "aggregateFromKubeServiceEndpoints": "true",
            "aggregationType": "sum",
        },
    }


def _build_prometheus_trigger(
    resource: Resource, autoscaling: Autoscaling, keda: KedaSettings, revision: str
) -> Manifest:
    pods = f'namespace="{resource.key.namespace}",pod=~"{build_deployment_name(resource, revision)}-.*"'
    return {
        "type": "prometheus",
        "metadata": {
            "serverAddress": keda.prometheus,
            "query": f"sum({METRICS[autoscaling.metric]}{{{pods}}})",
            "threshold": format_plain_number(find_target_value(autoscaling)),
        },
    }
