"""Chooses the view of a child object by its kind."""

from __future__ import annotations

from collections.abc import Mapping

from embedserve_operator.kube.objects import Received
from embedserve_operator.kube.views.objects import ConfigMap, Object, Service
from embedserve_operator.kube.views.workloads import Deployment, HorizontalPodAutoscaler

_VIEWS: Mapping[str, type[Object]] = {
    "ConfigMap": ConfigMap,
    "Deployment": Deployment,
    "HorizontalPodAutoscaler": HorizontalPodAutoscaler,
    "Service": Service,
}


def parse_child(received: Received) -> Object:
    """Return the view of a child: that of its kind, or that of any object where nothing else is read of it."""
    return _VIEWS.get(received.get("kind", ""), Object).parse(received)
