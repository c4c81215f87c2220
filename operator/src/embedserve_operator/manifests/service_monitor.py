"""Builds the ServiceMonitor of the Prometheus operator.

Metrics are read from the pods, since the Service has no management port.
"""

from __future__ import annotations

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.kube.objects import Manifest
from embedserve_operator.manifests.metadata import (
    REVISION_LABEL,
    SCRAPE_LABEL,
    SERVICE_LABEL,
    SPACE_LABEL,
    add_fingerprint,
    build_metadata,
)
from embedserve_operator.state.resource import Resource


def build_service_monitor(resource: Resource, spec: EmbeddingServiceSpec) -> Manifest | None:
    """Return the ServiceMonitor; None when it is not asked for."""
    settings = spec.monitoring.service_monitor if spec.monitoring is not None else None
    if settings is None:
        return None
    meta = build_metadata(resource, resource.key.name)
    meta["labels"] = {**(settings.labels or {}), **meta["labels"]}
    endpoint = {"targetPort": "management", "path": "/metrics"}
    if settings.interval is not None:
        endpoint["interval"] = settings.interval
    return add_fingerprint(
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "ServiceMonitor",
            "metadata": meta,
            "spec": {
                "selector": {"matchLabels": {SERVICE_LABEL: resource.key.name, SCRAPE_LABEL: "true"}},
                "jobLabel": SERVICE_LABEL,
                # These labels tell the pods of two models apart while both exist.
                "podTargetLabels": [REVISION_LABEL, SPACE_LABEL],
                "endpoints": [endpoint],
            },
        }
    )
