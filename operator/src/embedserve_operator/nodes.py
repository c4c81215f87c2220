"""Nodes: what is known of each, and which of them a class's pods may run on. Pure.

The same requirements are written into the pods' node affinity (`specs/placement`) and asked of the nodes here, so
that what is told is what the scheduler does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from embedserve_operator.api.pods import Toleration
from embedserve_operator.hardware import ARCHITECTURE, COMPUTE_MAJOR, COMPUTE_MINOR


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint of a node."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        return f"{self.key}{'=' + self.value if self.value else ''}:{self.effect}"


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The parts of a node that placement rests on."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    unschedulable: bool
    allocatable: Mapping[str, int]
    """Extended resources (accelerators), whole numbers."""

    @property
    def capability(self) -> str:
        """Compute capability, empty without an accelerator that discovery knows."""
        major, minor = self.labels.get(COMPUTE_MAJOR), self.labels.get(COMPUTE_MINOR)
        return f"{major}.{minor}" if major and minor else ""

    def words(self) -> str:
        """What the node offers, for people."""
        parts = [self.labels.get(ARCHITECTURE, "unknown architecture")]
        if self.capability:
            parts.append(f"compute capability {self.capability}")
        parts += [f"{count} {name}" for name, count in sorted(self.allocatable.items()) if count]
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """What is known of the cluster as a whole."""

    nodes: tuple[NodeFacts, ...] | None = None
    """None where nodes are not watched."""
    runtime_classes: frozenset[str] = frozenset()
    optional_kinds: frozenset[str] = frozenset()
    """Of the kinds that a cluster may lack, those whose definitions are installed."""
    metrics_providers: tuple[str, ...] = ()
    """Who answers custom.metrics.k8s.io beside our adapter, in words; known only where ours is to be registered."""


UNKNOWN_CLUSTER = ClusterFacts()
"""Nothing is known, as for a file without a cluster."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What pods ask of a node."""

    capabilities: tuple[str, ...]
    architectures: tuple[str, ...]
    labels: Mapping[str, str]
    tolerations: tuple[Toleration, ...]
    resource_name: str | None
    count: int

    def words(self) -> str:
        """What is looked for, for people."""
        parts = [f"architecture {' or '.join(self.architectures)}"]
        if self.capabilities:
            parts.append(f"compute capability {' or '.join(self.capabilities)}")
        parts += [f"label {key}={value}" for key, value in sorted(self.labels.items())]
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Match:
    """The nodes, sorted by what keeps the pods from them."""

    fitting: tuple[str, ...]
    """Names of nodes that may take the pods."""
    too_few: tuple[str, ...]
    """Name and words of nodes that fit but for the number of accelerators."""
    tainted: tuple[str, ...]
    """Name and taint of nodes that fit but for a taint."""
    others: tuple[str, ...]
    """What the rest offers, counted."""


def match(demand: Demand, nodes: Sequence[NodeFacts]) -> Match:
    """Which nodes may take the pods, and why the others may not."""
    fitting, too_few, tainted, others = [], [], [], []
    for node in nodes:
        if not _has_labels(demand, node):
            others.append(node.words())
        elif (taint := repelling(demand, node)) is not None:
            tainted.append(f"{node.name} ({taint})")
        elif demand.resource_name is not None and _count(demand, node) < demand.count:
            too_few.append(f"{node.name} ({_count(demand, node)})")
        else:
            fitting.append(node.name)
    counted = tuple(
        f"{number} node{'' if number == 1 else 's'} ({words})"
        for words, number in sorted(Counter(others).items())
    )
    return Match(tuple(fitting), tuple(too_few), tuple(tainted), counted)


def _has_labels(demand: Demand, node: NodeFacts) -> bool:
    return (
        node.labels.get(ARCHITECTURE) in demand.architectures
        and (not demand.capabilities or node.capability in demand.capabilities)
        and all(node.labels.get(key) == value for key, value in demand.labels.items())
    )


def _count(demand: Demand, node: NodeFacts) -> int:
    return node.allocatable.get(demand.resource_name or "", 0)


def repelling(demand: Demand, node: NodeFacts) -> str | None:
    """What keeps the pods from a node whose labels fit, in words."""
    if node.unschedulable:
        return "cordoned"
    for taint in node.taints:
        hard = taint.effect in ("NoSchedule", "NoExecute")
        if hard and not any(_tolerates(toleration, taint) for toleration in demand.tolerations):
            return f"taint {taint}"
    return None


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect is not None and toleration.effect != taint.effect:
        return False
    if toleration.key is None:
        return toleration.operator == "Exists"
    if toleration.key != taint.key:
        return False
    return toleration.operator == "Exists" or (toleration.value or "") == taint.value
