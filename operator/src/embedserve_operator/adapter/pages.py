"""What a pod's metrics page says, reduced to its gauges.

Only gauges can be scaled by: a counter never falls. The page is cut into families before any of it is parsed, since
parsing all of a page (some 800 lines, mostly histograms) costs a hundred times what the gauge asked for does.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from embedserve_operator.adapter.selectors import Selector, admits

_TYPE = b"# TYPE "


@dataclass(frozen=True, slots=True)
class Page:
    """A page's families, unparsed."""

    gauges: Mapping[str, str]
    """Text of each gauge, its TYPE line included, by name."""
    others: frozenset[str]
    """Names of the families that are no gauges."""


def read_page(content: bytes) -> Page:
    """Cut a page of the Prometheus text format into families. Raises ValueError where a gauge is not UTF-8."""
    gauges: dict[str, str] = {}
    others: set[str] = set()
    # Split in one sweep: of most pages all but a few lines are thrown away.
    for family in (b"\n" + content).split(b"\n" + _TYPE)[1:]:
        name, _, kind = family.partition(b"\n")[0].decode().partition(" ")
        if kind.strip() == "gauge":
            gauges[name] = f"{_TYPE.decode()}{family.decode()}\n"
        else:
            # One string for a name, however many pods have it.
            others.add(sys.intern(name))
    return Page(gauges, frozenset(others))


def gauge_value(page: Page, name: str, selector: Selector) -> float | None:
    """The gauge, summed over the series that the selector admits; None when there is none of them, or when what
    the page says is no finite number."""
    text = page.gauges.get(name)
    if text is None:
        return None
    try:
        found = [
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and admits(selector, sample.labels)
        ]
    except ValueError:
        return None
    total = math.fsum(found)
    return total if found and math.isfinite(total) else None
