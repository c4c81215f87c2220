"""Questions and what the pods said -> answers, in the words of the Kubernetes API."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from embedserve_operator.adapter.pages import Page, gauge_value
from embedserve_operator.adapter.questions import (
    METRICS_GROUP,
    METRICS_VERSION,
    OBJECT_RESOURCES,
    Described,
    Question,
)
from embedserve_operator.adapter.targets import Target
from embedserve_operator.errors import PodsSilentError, UnknownMetricError
from embedserve_operator.specs.autoscaler import METRICS
from embedserve_operator.wire import Manifest

GROUP_VERSION = f"{METRICS_GROUP}/{METRICS_VERSION}"


def answer(question: Question, targets: Sequence[Target], pages: Mapping[str, Page], now: str) -> Manifest:
    """The list of values; `pages` by UID, of the pods that answered, `now` in RFC 3339.

    A pod that did not answer is missing, not zero: the autoscaler then takes it for one that is exactly as loaded as it
    should be, and does nothing that could be wrong. A sum cannot have a part missing: it raises PodsSilentError when a
    ready pod did not answer. UnknownMetricError when there are no pods, or they have no such gauge.
    """
    asked = [target for target in targets if question.pod in (None, target.name)]
    if not asked:
        raise UnknownMetricError(f"no pod is running that {question.pods} selects in {question.namespace}")
    values = {target.uid: _value(question, pages.get(target.uid)) for target in asked}
    known = {uid: value for uid, value in values.items() if value is not None}
    if not known:
        raise _nothing_known(question, asked, pages)
    if question.about is not None:
        silent = [target.name for target in asked if target.ready and target.uid not in known]
        if silent:
            raise PodsSilentError(
                f"no sum without what these pods say, which did not answer: {', '.join(silent)}"
            )
        return _list([_item(question, question.about, math.fsum(known.values()), now)])
    return _list(
        [
            _item(question, Described("Pod", "v1", target.name), known[target.uid], now)
            for target in asked
            if target.uid in known
        ]
    )


def quantity(value: float) -> str:
    """A Kubernetes quantity; rounded up to thousandths, so that a little is never nothing."""
    thousandths = math.ceil(round(value * 1000, 6))
    return f"{thousandths}m" if thousandths % 1000 else str(thousandths // 1000)


def resource_list() -> Manifest:
    """The discovery document of the version."""
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


def group() -> Manifest:
    """The discovery document of the group."""
    version = {"groupVersion": GROUP_VERSION, "version": METRICS_VERSION}
    return {
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": METRICS_GROUP,
        "versions": [version],
        "preferredVersion": version,
    }


def open_api() -> Manifest:
    """The least that keeps the API server's log quiet."""
    return {
        "swagger": "2.0",
        "info": {"title": "embedserve metrics adapter", "version": METRICS_VERSION},
        "paths": {},
    }


def refusal(code: int, reason: str, message: str) -> Manifest:
    """An error in the API's words."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "reason": reason,
        "message": message,
        "code": code,
    }


def _value(question: Question, page: Page | None) -> float | None:
    return None if page is None else gauge_value(page, question.metric, question.series)


def _nothing_known(
    question: Question, asked: Sequence[Target], pages: Mapping[str, Page]
) -> UnknownMetricError | PodsSilentError:
    answered = [pages[target.uid] for target in asked if target.uid in pages]
    if not answered:
        return PodsSilentError(f"none of {len(asked)} pods answered in time")
    if any(question.metric in page.others for page in answered):
        return UnknownMetricError(f"{question.metric} is no gauge, and only gauges can be scaled by")
    series = f" with labels {question.series_text}" if question.series_text else ""
    return UnknownMetricError(f"the pods have no gauge {question.metric}{series}")


def _list(items: list[Manifest]) -> Manifest:
    return {"kind": "MetricValueList", "apiVersion": GROUP_VERSION, "metadata": {}, "items": items}


def _item(question: Question, about: Described, value: float, now: str) -> Manifest:
    return {
        "describedObject": {
            "kind": about.kind,
            "apiVersion": about.api_version,
            "namespace": question.namespace,
            "name": about.name,
        },
        "metric": {"name": question.metric},
        "timestamp": now,
        "value": quantity(value),
    }
