"""The ServiceMonitor of the Prometheus operator. Metrics are read from the pods: the Service has no management port."""

from __future__ import annotations

from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.specs.metadata import (
    REVISION_LABEL,
    SCRAPE_LABEL,
    SERVICE_LABEL,
    SPACE_LABEL,
    fingerprinted,
    metadata,
)
from embedserve_operator.wire import Manifest
from embedserve_operator.world import Resource


def service_monitor(resource: Resource, spec: EmbeddingServiceSpec) -> Manifest | None:
    """The ServiceMonitor; None when it is not asked for."""
    wanted = spec.monitoring.service_monitor if spec.monitoring is not None else None
    if wanted is None:
        return None
    meta = metadata(resource, resource.key.name)
    meta["labels"] = {**(wanted.labels or {}), **meta["labels"]}
    endpoint = {"targetPort": "management", "path": "/metrics"}
    if wanted.interval is not None:
        endpoint["interval"] = wanted.interval
    return fingerprinted(
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "ServiceMonitor",
            "metadata": meta,
            "spec": {
                "selector": {"matchLabels": {SERVICE_LABEL: resource.key.name, SCRAPE_LABEL: "true"}},
                "jobLabel": SERVICE_LABEL,
                # So that pods of two models are told apart while both are there.
                "podTargetLabels": [REVISION_LABEL, SPACE_LABEL],
                "endpoints": [endpoint],
            },
        }
    )
