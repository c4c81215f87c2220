"""The ScaledObject of one revision's Deployment, where KEDA decides the number of pods, and what it reads them by.

KEDA makes a HorizontalPodAutoscaler of it, which carries our labels, and answers that one's questions itself.
"""

from __future__ import annotations

from embedserve_operator.api.types import Autoscaling, EmbeddingServiceSpec
from embedserve_operator.settings import KedaSettings
from embedserve_operator.specs.autoscaler import METRICS, behavior_of, target_of
from embedserve_operator.specs.deployment import deployment_name
from embedserve_operator.specs.metadata import fingerprinted, metadata, selector
from embedserve_operator.specs.runtime_config import MANAGEMENT_PORT
from embedserve_operator.wire import Manifest, decimal_of
from embedserve_operator.world import Resource

_DEFAULT_CALM = 300
"""Of KEDA and of the autoscaler alike."""


def scaled_object(
    resource: Resource, spec: EmbeddingServiceSpec, keda: KedaSettings, revision: str
) -> Manifest | None:
    """The ScaledObject; None when the number of pods is fixed."""
    wanted = spec.autoscaling
    if wanted is None or spec.suspend:
        return None
    name = deployment_name(resource, revision)
    behavior = behavior_of(wanted)
    ours = _of_prometheus(resource, wanted, keda, revision) if keda.prometheus else _of_pods(resource, wanted)
    return fingerprinted(
        {
            "apiVersion": "keda.sh/v1alpha1",
            "kind": "ScaledObject",
            "metadata": metadata(resource, name, revision),
            "spec": {
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
                "minReplicaCount": wanted.min_replicas,
                "maxReplicaCount": wanted.max_replicas,
                **({} if wanted.min_replicas else {"cooldownPeriod": _calm(behavior)}),
                "advanced": {"horizontalPodAutoscalerConfig": {"behavior": behavior}},
                # Ours first: the status tells its value.
                "triggers": [ours, *(wanted.triggers or ())],
            },
        }
    )


def _calm(behavior: Manifest) -> int:
    """Seconds without work before the last pod goes: as long as an autoscaler waits before any other."""
    seconds = behavior["scaleDown"].get("stabilizationWindowSeconds")
    return seconds if isinstance(seconds, int) else _DEFAULT_CALM


def metrics_service(resource: Resource, spec: EmbeddingServiceSpec, revision: str) -> Manifest | None:
    """The headless Service by which KEDA finds the management ports of a revision's pods."""
    if spec.autoscaling is None or spec.suspend:
        return None
    return fingerprinted(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata(resource, metrics_service_name(resource)),
            "spec": {
                "clusterIP": "None",
                "selector": selector(resource, revision),
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


def metrics_service_name(resource: Resource) -> str:
    """Name of the Service of the management ports."""
    return f"{resource.key.name}-metrics"


def _of_pods(resource: Resource, wanted: Autoscaling) -> Manifest:
    """KEDA asks every ready pod; the sum over the number of pods is what a pod has on average."""
    host = f"{metrics_service_name(resource)}.{resource.key.namespace}.svc"
    return {
        "type": "metrics-api",
        "metadata": {
            "url": f"http://{host}:{MANAGEMENT_PORT}/metrics",
            "format": "prometheus",
            "valueLocation": METRICS[wanted.metric],
            "targetValue": decimal_of(target_of(wanted)),
            "aggregateFromKubeServiceEndpoints": "true",
            "aggregationType": "sum",
        },
    }


def _of_prometheus(resource: Resource, wanted: Autoscaling, keda: KedaSettings, revision: str) -> Manifest:
    pods = f'namespace="{resource.key.namespace}",pod=~"{deployment_name(resource, revision)}-.*"'
    return {
        "type": "prometheus",
        "metadata": {
            "serverAddress": keda.prometheus,
            "query": f"sum({METRICS[wanted.metric]}{{{pods}}})",
            "threshold": decimal_of(target_of(wanted)),
        },
    }
