"""Describes nodes, and finds those on which the pods of a hardware class may run.

The same requirements are written into the node affinity of the pods (`manifests/placement`) and compared
with the nodes here, so that what is reported is what the scheduler does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from embedserve_operator.api.hardware import ARCHITECTURE, COMPUTE_MAJOR, COMPUTE_MINOR
from embedserve_operator.api.pods import Toleration


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint of a node."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        return f"{self.key}{'=' + self.value if self.value else ''}:{self.effect}"


@dataclass(frozen=True, slots=True)
class NodeState:
    """The parts of a node that placement rests on."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    is_unschedulable: bool
    allocatable: Mapping[str, int]
    """Extended resources (accelerators), in whole numbers."""

    @property
    def capability(self) -> str:
        """The compute capability; empty without an accelerator that feature discovery knows."""
        major, minor = self.labels.get(COMPUTE_MAJOR), self.labels.get(COMPUTE_MINOR)
        return f"{major}.{minor}" if major and minor else ""

    def describe(self) -> str:
        """Return a human-readable description of what the node offers."""
        parts = [self.labels.get(ARCHITECTURE, "unknown architecture")]
        if self.capability:
            parts.append(f"compute capability {self.capability}")
        parts += [f"{count} {name}" for name, count in sorted(self.allocatable.items()) if count]
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The facts that are known about the cluster as a whole."""

    nodes: tuple[NodeState, ...] | None = None
    """The nodes; None where they are not watched."""
    runtime_classes: frozenset[str] = frozenset()
    optional_kinds: frozenset[str] = frozenset()
    """The kinds whose definitions are installed, of the kinds that a cluster may lack."""
    metrics_providers: tuple[str, ...] = ()
    """The providers of custom.metrics.k8s.io besides our adapter, in a human-readable form; known only where ours
    is to be registered.
    """


UNKNOWN_CLUSTER = ClusterState()
"""The state where nothing is known, as for a file without a cluster."""


@dataclass(frozen=True, slots=True)
class NodeRequirements:
    """The requirements that pods have of a node."""

    capabilities: tuple[str, ...]
    accelerator_labels: Mapping[str, tuple[str, ...]]
    """The labels with values, one of which does in place of a compute capability."""
    architectures: tuple[str, ...]
    labels: Mapping[str, str]
    tolerations: tuple[Toleration, ...]
    resource_name: str | None
    count: int

    def describe(self) -> str:
        """Return a human-readable description of the node that is looked for."""
        parts = [f"architecture {' or '.join(self.architectures)}"]
        if self.capabilities and self.accelerator_labels:
            parts.append(f"compute capability {' or '.join(self.capabilities)} or a cloud's label for it")
        elif self.capabilities:
            parts.append(f"compute capability {' or '.join(self.capabilities)}")
        elif self.accelerator_labels:
            parts.append(f"one of the labels {'; '.join(self.list_accelerator_labels())}")
        parts += [f"label {key}={value}" for key, value in sorted(self.labels.items())]
        return ", ".join(parts)

    def list_accelerator_labels(self) -> list[str]:
        """Return each label that does in place of a compute capability with its values, in a human-readable form."""
        return [f"{key}={' or '.join(values)}" for key, values in self.accelerator_labels.items()]


@dataclass(frozen=True, slots=True)
class NodeMatches:
    """The nodes, sorted by what keeps the pods away from them."""

    fitting: tuple[str, ...]
    """The names of the nodes that may take the pods."""
    too_few: tuple[str, ...]
    """The descriptions of the nodes that would fit if they had enough accelerators."""
    tainted: tuple[str, ...]
    """The descriptions of the nodes that would fit if they had no taint."""
    other_nodes: tuple[str, ...]
    """The descriptions of what all other nodes offer, with their number."""


def match_nodes(demand: NodeRequirements, nodes: Sequence[NodeState]) -> NodeMatches:
    """Return which nodes may take the pods, and why the others may not."""
    fitting, too_few, tainted, unsuitable = [], [], [], []
    for node in nodes:
        if not _has_labels(demand, node):
            unsuitable.append(node.describe())
        elif (taint := find_obstacle(demand, node)) is not None:
            tainted.append(f"{node.name} ({taint})")
        elif demand.resource_name is not None and _count_accelerators(demand, node) < demand.count:
            too_few.append(f"{node.name} ({_count_accelerators(demand, node)})")
        else:
            fitting.append(node.name)
    counted = tuple(
        f"{number} node{'' if number == 1 else 's'} ({description})"
        for description, number in sorted(Counter(unsuitable).items())
    )
    return NodeMatches(tuple(fitting), tuple(too_few), tuple(tainted), counted)


def _has_labels(demand: NodeRequirements, node: NodeState) -> bool:
    return (
        node.labels.get(ARCHITECTURE) in demand.architectures
        and _has_accelerators(demand, node)
        and all(node.labels.get(key) == value for key, value in demand.labels.items())
    )


def _has_accelerators(demand: NodeRequirements, node: NodeState) -> bool:
    """Return whether the accelerators of a node are of the right kind, by what discovery or the cloud says."""
    if not demand.capabilities and not demand.accelerator_labels:
        return True
    return node.capability in demand.capabilities or any(
        node.labels.get(key) in values for key, values in demand.accelerator_labels.items()
    )


def _count_accelerators(demand: NodeRequirements, node: NodeState) -> int:
    return node.allocatable.get(demand.resource_name or "", 0)


def find_obstacle(demand: NodeRequirements, node: NodeState) -> str | None:
    """Return what keeps the pods away from a node whose labels fit, in a human-readable form."""
    if node.is_unschedulable:
        return "cordoned"
    for taint in node.taints:
        hard = taint.effect in ("NoSchedule", "NoExecute")
        if hard and not any(_is_tolerated(toleration, taint) for toleration in demand.tolerations):
            return f"taint {taint}"
    return None


def _is_tolerated(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect is not None and toleration.effect != taint.effect:
        return False
    if toleration.key is None:
        return toleration.operator == "Exists"
    if toleration.key != taint.key:
        return False
    return toleration.operator == "Exists" or (toleration.value or "") == taint.value
