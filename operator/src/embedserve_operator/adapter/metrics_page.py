"""Reduces the metrics page of a pod to its gauges.

Only gauges can be scaled by: a counter never falls. The page is cut into families before any of it is
parsed, since parsing all of it (some 800 lines, mostly histograms) costs a hundred times as much as parsing
the gauge that is needed.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from embedserve_operator.adapter.selectors import Selector, matches_selector

_TYPE = b"# TYPE "


@dataclass(frozen=True, slots=True)
class MetricsPage:
    """The families of a page, unparsed."""

    gauges: Mapping[str, str]
    """The text of each gauge by its name, including its TYPE line."""
    other_families: frozenset[str]
    """The names of the families that are not gauges."""


def read_page(content: bytes) -> MetricsPage:
    """Cut a page of the Prometheus text format into families.

    Raises ValueError where a gauge is not UTF-8.
    """
    gauges: dict[str, str] = {}
    non_gauges: set[str] = set()
    # The page is split in one go, since nearly all lines of most pages are thrown away.
    for family in (b"\n" + content).split(b"\n" + _TYPE)[1:]:
        name, _, kind = family.partition(b"\n")[0].decode().partition(" ")
        if kind.strip() == "gauge":
            gauges[name] = f"{_TYPE.decode()}{family.decode()}\n"
        else:
            # All pods share one string for a name.
            non_gauges.add(sys.intern(name))
    return MetricsPage(gauges, frozenset(non_gauges))


def read_gauge(page: MetricsPage, name: str, selector: Selector) -> float | None:
    """Return the gauge, summed over the series that the selector matches; None when there is no such series, or
    when the value on the page is not a finite number.
    """
    text = page.gauges.get(name)
    if text is None:
        return None
    try:
        values = [
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and matches_selector(selector, sample.labels)
        ]
    except ValueError:
        return None
    total = math.fsum(values)
    return total if values and math.isfinite(total) else None
