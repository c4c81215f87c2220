"""Metric series as plain numbers in one row of memory.

Counting costs an index and an addition, without a lock or an object for each label. The row may be memory that another
process reads: front-end processes count in rows that outlive them, and a scrape adds the rows up.

    SeriesLayout  the series, and where in a row each has its numbers
    Histogram     counts in one member of a histogram in one row
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from prometheus_client.core import HistogramMetricFamily, Metric

Labels = tuple[str, ...]
# float64: whole numbers are exact up to 2^53.
Row: TypeAlias = "memoryview[float]"
NUMBER_BYTES = 8
# `untyped` is a counter with a name that the text format does not allow for counters.
SimpleKind = Literal["counter", "untyped", "gauge"]
Kind = SimpleKind | Literal["histogram"]


@dataclass(frozen=True)
class MetricFamily:
    """The series of one metric.

    members: the label values of each series, in the order of their numbers. start: the offset of the first number.
    A member of a histogram has a number for each bucket, the one above all bounds included, then the sum.
    """

    kind: Kind
    name: str
    help: str
    label_names: Labels
    members: tuple[Labels, ...]
    start: int
    bounds: tuple[float, ...] = ()

    @property
    def width(self) -> int:
        return len(self.bounds) + 2 if self.kind == "histogram" else 1

    def offsets(self) -> dict[Labels, int]:
        """Return the offset of the first number of each member."""
        return {labels: self.start + index * self.width for index, labels in enumerate(self.members)}

    def metric(self, row: Sequence[float]) -> Metric:
        """Build the metric from the numbers of a row."""
        if self.kind == "histogram":
            return self._build_histogram(row)
        name = f"{self.name}_total" if self.kind == "counter" else self.name
        metric = Metric(self.name, self.help, "unknown" if self.kind == "untyped" else self.kind)
        for labels, offset in self.offsets().items():
            metric.add_sample(name, dict(zip(self.label_names, labels, strict=True)), row[offset])
        return metric

    def _build_histogram(self, row: Sequence[float]) -> Metric:
        family = HistogramMetricFamily(self.name, self.help, labels=self.label_names)
        names = (*(f"{bound:g}" for bound in self.bounds), "+Inf")
        for labels, offset in self.offsets().items():
            buckets, total = [], 0.0
            for bucket, name in enumerate(names):
                total += row[offset + bucket]
                buckets.append((name, total))
            family.add_metric(labels, buckets, row[offset + len(names)])
        return family


@dataclass
class SeriesLayout:
    """The positions of the series in a row."""

    families: list[MetricFamily] = field(default_factory=list)
    size: int = 0

    def add(
        self,
        kind: SimpleKind,
        name: str,
        text: str,
        label_names: Labels = (),
        members: Iterable[Labels] = ((),),
    ) -> MetricFamily:
        """Add a metric with one number a member."""
        return self._append(MetricFamily(kind, name, text, label_names, tuple(members), self.size))

    def add_histogram(
        self,
        name: str,
        text: str,
        bounds: tuple[float, ...],
        label_names: Labels = (),
        members: Iterable[Labels] = ((),),
    ) -> MetricFamily:
        """Add a histogram. bounds: the upper ones of its buckets, ascending, but for the last."""
        return self._append(
            MetricFamily("histogram", name, text, label_names, tuple(members), self.size, bounds)
        )

    def _append(self, family: MetricFamily) -> MetricFamily:
        self.families.append(family)
        self.size += family.width * len(family.members)
        return family

    def new_row(self) -> Row:
        return view_row(memoryview(bytearray(self.size * NUMBER_BYTES)))

    def metrics(self, rows: Sequence[Row]) -> Iterator[Metric]:
        """Return the metrics of the sum of all rows."""
        total = [sum(numbers) for numbers in zip(*rows, strict=True)]
        return (family.metric(total) for family in self.families)


def view_row(memory: memoryview) -> Row:
    """View memory as a row of numbers."""
    return memory.cast("B").cast("d")


class Histogram:
    """Counts values in one histogram of a metric. Values on a bound belong to the bucket below it."""

    __slots__ = ("bounds", "row", "start", "sum")

    def __init__(self, family: MetricFamily, row: Row, labels: Labels = ()) -> None:
        self.bounds = family.bounds
        self.row = row
        self.start = family.offsets()[labels]
        self.sum = self.start + family.width - 1

    def observe(self, value: float, times: int = 1) -> None:
        row = self.row
        row[self.start + bisect_left(self.bounds, value)] += times
        row[self.sum] += value * times


class HistogramPair:
    """Counts a value in one histogram, and several times in another one with the same bounds and row."""

    __slots__ = ("_bounds", "_first", "_first_sum", "_row", "_second", "_second_sum")

    def __init__(self, first: Histogram, second: Histogram) -> None:
        self._bounds = first.bounds
        self._row = first.row
        self._first, self._first_sum = first.start, first.sum
        self._second, self._second_sum = second.start, second.sum

    def observe(self, value: float, times: int) -> None:
        row = self._row
        bucket = bisect_left(self._bounds, value)
        row[self._first + bucket] += 1
        row[self._first_sum] += value
        row[self._second + bucket] += times
        row[self._second_sum] += value * times
