"""Paths and queries of custom.metrics.k8s.io -> questions.

The autoscaler asks for `pods/*/METRIC` with a label selector (the star comes percent-encoded), or for one object:
`services/NAME/METRIC`, `embeddingservices.embedserve.dev/NAME/METRIC`. An object's value is the sum over its pods.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from embedserve_operator.adapter.selectors import Selector, parse_selector
from embedserve_operator.api.types import API_VERSION, GROUP, KIND, PLURAL
from embedserve_operator.errors import UnknownMetricError
from embedserve_operator.specs.metadata import SERVICE_LABEL

METRICS_GROUP = "custom.metrics.k8s.io"
METRICS_VERSION = "v1beta2"
ROOT = f"/apis/{METRICS_GROUP}/{METRICS_VERSION}"
OBJECT_RESOURCES = {"services": ("Service", "v1"), f"{PLURAL}.{GROUP}": (KIND, API_VERSION)}
"""Resources whose value is the sum over their pods: kind and API version of each."""


@dataclass(frozen=True, slots=True)
class Described:
    """The object that an answer is about."""

    kind: str
    api_version: str
    name: str


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked."""

    namespace: str
    metric: str
    pods: str
    """Label selector of the pods; for the API server to evaluate."""
    series: Selector
    """Which series of the metric."""
    series_text: str
    pod: str | None = None
    """The one pod that is asked for by name."""
    about: Described | None = None
    """The object that the pods are summed up for; None when each pod is to be told."""


def read_question(path: str, query: Mapping[str, str]) -> Question:
    """The question of a path that is still percent-encoded. Raises UnknownMetricError where there is nothing of
    that name, BadQuestionError for a selector that is none."""
    parts = [unquote(part) for part in path.removeprefix(ROOT).strip("/").split("/")]
    if not path.startswith(f"{ROOT}/") or len(parts) != 5 or parts[0] != "namespaces" or not all(parts):
        raise UnknownMetricError(f"there is nothing at {path}")
    _, namespace, resource, name, metric = parts
    series_text = query.get("metricLabelSelector", "")
    series = parse_selector(series_text)
    if resource == "pods":
        # Ours only, whatever the selector is.
        pods = ",".join(term for term in (query.get("labelSelector", ""), SERVICE_LABEL) if term)
        return Question(namespace, metric, pods, series, series_text, pod=None if name == "*" else name)
    if resource not in OBJECT_RESOURCES:
        told = ", ".join(("pods", *OBJECT_RESOURCES))
        raise UnknownMetricError(f"metrics are told of {told}; not of {resource}")
    if name == "*":
        raise UnknownMetricError(f"metrics of {resource} are told one by one: give a name instead of *")
    kind, api_version = OBJECT_RESOURCES[resource]
    about = Described(kind, api_version, name)
    return Question(namespace, metric, f"{SERVICE_LABEL}={name}", series, series_text, about=about)
