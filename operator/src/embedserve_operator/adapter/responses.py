"""Builds the responses of the metrics API from what the pods answered."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from embedserve_operator.adapter.metrics_page import MetricsPage, read_gauge
from embedserve_operator.adapter.queries import (
    METRICS_GROUP,
    METRICS_VERSION,
    OBJECT_RESOURCES,
    DescribedObject,
    MetricQuery,
)
from embedserve_operator.adapter.targets import ScrapeTarget
from embedserve_operator.errors import PodsUnresponsiveError, UnknownMetricError
from embedserve_operator.kube.objects import Manifest
from embedserve_operator.manifests.autoscaler import METRICS

GROUP_VERSION = f"{METRICS_GROUP}/{METRICS_VERSION}"


def build_metric_values(
    query: MetricQuery, targets: Sequence[ScrapeTarget], pages: Mapping[str, MetricsPage], now: str
) -> Manifest:
    """Return the list of values. `pages` are those of the pods that answered, by UID; `now` is in RFC 3339.

    A pod that did not answer is missing, not zero: the autoscaler then takes it to be exactly as loaded as
    it should be, and does nothing that could be wrong. A sum must not lack a part: PodsUnresponsiveError is
    raised when a ready pod did not answer. UnknownMetricError is raised when there are no pods, or when
    they have no such gauge.
    """
    selected = [target for target in targets if query.pod_name in (None, target.name)]
    if not selected:
        raise UnknownMetricError(f"no pod is running that {query.pod_selector} selects in {query.namespace}")
    values = {target.uid: _read_value(query, pages.get(target.uid)) for target in selected}
    present = {uid: value for uid, value in values.items() if value is not None}
    if not present:
        raise _build_no_value_error(query, selected, pages)
    if query.described_object is not None:
        unresponsive = [target.name for target in selected if target.is_ready and target.uid not in present]
        if unresponsive:
            raise PodsUnresponsiveError(
                f"the sum lacks the values of pods that did not answer: {', '.join(unresponsive)}"
            )
        return _build_list([_build_item(query, query.described_object, math.fsum(present.values()), now)])
    return _build_list(
        [
            _build_item(query, DescribedObject("Pod", "v1", target.name), present[target.uid], now)
            for target in selected
            if target.uid in present
        ]
    )


def format_quantity(value: float) -> str:
    """Return a Kubernetes quantity, rounded up to thousandths, so that a little never becomes nothing."""
    thousandths = math.ceil(round(value * 1000, 6))
    return f"{thousandths}m" if thousandths % 1000 else str(thousandths // 1000)


def build_resource_list() -> Manifest:
    """Return the discovery document of the version."""
    names = [
        f"{resource}/{metric}" for resource in ("pods", *OBJECT_RESOURCES) for metric in METRICS.values()
    ]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": GROUP_VERSION,
        "resources": [
            {
                "name": name,
                "singularName": "",
                "namespaced": True,
                "kind": "MetricValueList",
                "verbs": ["get"],
            }
            for name in names
        ],
    }


def build_group() -> Manifest:
    """Return the discovery document of the group."""
    version = {"groupVersion": GROUP_VERSION, "version": METRICS_VERSION}
    return {
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": METRICS_GROUP,
        "versions": [version],
        "preferredVersion": version,
    }


def build_open_api() -> Manifest:
    """Return the smallest document that keeps the API server's log quiet."""
    return {
        "swagger": "2.0",
        "info": {"title": "embedserve metrics adapter", "version": METRICS_VERSION},
        "paths": {},
    }


def build_error(code: int, reason: str, message: str) -> Manifest:
    """Return an error as the Kubernetes API expresses it."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "reason": reason,
        "message": message,
        "code": code,
    }


def _read_value(query: MetricQuery, page: MetricsPage | None) -> float | None:
    return None if page is None else read_gauge(page, query.metric, query.series)


def _build_no_value_error(
    query: MetricQuery, selected: Sequence[ScrapeTarget], pages: Mapping[str, MetricsPage]
) -> UnknownMetricError | PodsUnresponsiveError:
    answered = [pages[target.uid] for target in selected if target.uid in pages]
    if not answered:
        return PodsUnresponsiveError(f"none of {len(selected)} pods answered in time")
    if any(query.metric in page.other_families for page in answered):
        return UnknownMetricError(f"{query.metric} is no gauge, and only gauges can be scaled by")
    series = f" with labels {query.series_text}" if query.series_text else ""
    return UnknownMetricError(f"the pods have no gauge {query.metric}{series}")


def _build_list(items: list[Manifest]) -> Manifest:
    return {"kind": "MetricValueList", "apiVersion": GROUP_VERSION, "metadata": {}, "items": items}


def _build_item(query: MetricQuery, about: DescribedObject, value: float, now: str) -> Manifest:
    return {
        "describedObject": {
            "kind": about.kind,
            "apiVersion": about.api_version,
            "namespace": query.namespace,
            "name": about.name,
        },
        "metric": {"name": query.metric},
        "timestamp": now,
        "value": format_quantity(value),
    }
