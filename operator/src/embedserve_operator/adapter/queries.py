"""Parses paths and queries of custom.metrics.k8s.io.

The autoscaler asks for `pods/*/METRIC` with a label selector (the star is percent-encoded), or for one
object: `services/NAME/METRIC`, `embeddingservices.embedserve.dev/NAME/METRIC`. The value of an object is
the sum over its pods.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from embedserve_operator.adapter.selectors import Selector, parse_selector
from embedserve_operator.api.types import API_VERSION, GROUP, KIND, PLURAL
from embedserve_operator.errors import UnknownMetricError
from embedserve_operator.manifests.metadata import SERVICE_LABEL

METRICS_GROUP = "custom.metrics.k8s.io"
METRICS_VERSION = "v1beta2"
ROOT = f"/apis/{METRICS_GROUP}/{METRICS_VERSION}"
OBJECT_RESOURCES = {"services": ("Service", "v1"), f"{PLURAL}.{GROUP}": (KIND, API_VERSION)}
"""The resources whose value is the sum over their pods, each with its kind and API version."""


@dataclass(frozen=True, slots=True)
class DescribedObject:
    """The object that a metric value describes."""

    kind: str
    api_version: str
    name: str


@dataclass(frozen=True, slots=True)
class MetricQuery:
    """A query of an autoscaler."""

    namespace: str
    metric: str
    pod_selector: str
    """Label selector of the pods, which the API server evaluates."""
    series: Selector
    """The selector of the series of the metric."""
    series_text: str
    pod_name: str | None = None
    """The one pod that is asked for by its name."""
    described_object: DescribedObject | None = None
    """The object whose pods are summed up; None when the value of each pod is asked for."""


def parse_query(path: str, query: Mapping[str, str]) -> MetricQuery:
    """Return the query of a path that is still percent-encoded.

    Raises UnknownMetricError where there is nothing of that name, and InvalidMetricQueryError where a
    selector is malformed.
    """
    parts = [unquote(part) for part in path.removeprefix(ROOT).strip("/").split("/")]
    if not path.startswith(f"{ROOT}/") or len(parts) != 5 or parts[0] != "namespaces" or not all(parts):
        raise UnknownMetricError(f"there is nothing at {path}")
    _, namespace, resource, name, metric = parts
    series_text = query.get("metricLabelSelector", "")
    series = parse_selector(series_text)
    if resource == "pods":
        # Only our pods are asked for, whatever the selector is.
        pods = ",".join(term for term in (query.get("labelSelector", ""), SERVICE_LABEL) if term)
        return MetricQuery(
            namespace, metric, pods, series, series_text, pod_name=None if name == "*" else name
        )
    if resource not in OBJECT_RESOURCES:
        resources = ", ".join(("pods", *OBJECT_RESOURCES))
        raise UnknownMetricError(f"metrics are told of {resources}; not of {resource}")
    if name == "*":
        raise UnknownMetricError(f"metrics of {resource} are told one by one: give a name instead of *")
    kind, api_version = OBJECT_RESOURCES[resource]
    about = DescribedObject(kind, api_version, name)
    return MetricQuery(
        namespace, metric, f"{SERVICE_LABEL}={name}", series, series_text, described_object=about
    )
