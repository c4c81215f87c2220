"""NUMA nodes: parts of the machine whose CPUs reach their own memory fastest.

Threads that run on several nodes read weights that lie on one of them. Where the process may use no more CPUs than a
node has, it stays on one: threads and memory that come later follow. It stays where the kernel has put it, which has
looked for idle CPUs, so that the pods of a machine do not all choose the same node.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from embedserve_runtime.cpu.quota import allowed_cpus

NODES_ROOT = Path("/sys/devices/system/node")
PROCESS_ROOT = Path("/proc/self")
# In /proc/self/stat, counted from the state, which stands behind the name: the CPU that it ran on last.
LAST_CPU_FIELD = 36

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Node:
    """One that has CPUs."""

    number: int
    cpus: frozenset[int]


@dataclass(frozen=True, slots=True)
class CpuPlacement:
    """What the kernel lets a process have, and where it is. cpus: its affinity mask (cpuset). memory: numbers of the
    nodes that its memory may lie on. last: the CPU that it ran on last."""

    cpus: frozenset[int]
    memory: frozenset[int]
    last: int


def read_nodes(root: Path = NODES_ROOT) -> tuple[Node, ...]:
    """Read the memory nodes by number; none where the kernel lists none."""
    files = {int(file.parent.name.removeprefix("node")): file for file in root.glob("node[0-9]*/cpulist")}
    nodes = (Node(number, parse_cpu_list(files[number].read_text().strip())) for number in sorted(files))
    return tuple(node for node in nodes if node.cpus)


def read_placement(root: Path = PROCESS_ROOT) -> CpuPlacement:
    """Read the placement of this process."""
    fields = dict(line.split(":", 1) for line in (root / "status").read_text().splitlines() if ":" in line)
    last = (root / "stat").read_text().rpartition(")")[2].split()[LAST_CPU_FIELD]
    return CpuPlacement(
        allowed_cpus(), parse_cpu_list(fields.get("Mems_allowed_list", "").strip()), int(last)
    )


def parse_cpu_list(text: str) -> frozenset[int]:
    """CPUs, or nodes, of the kernel's notation: `0-3,8`."""
    ranges = (part.partition("-") for part in text.split(",") if part)
    return frozenset(cpu for first, _, last in ranges for cpu in range(int(first), int(last or first) + 1))


def list_usable_nodes(nodes: Sequence[Node], cpus: frozenset[int]) -> tuple[Node, ...]:
    """Those that have some of these CPUs, with no others."""
    return tuple(Node(node.number, node.cpus & cpus) for node in nodes if node.cpus & cpus)


def choose_numa_node(nodes: Sequence[Node], placement: CpuPlacement, wanted: int) -> Node | None:
    """The node to stay on, with those of its CPUs that may be used; None where it is one anyway, or `wanted` CPUs are
    on none whose memory may be used."""
    usable = list_usable_nodes(nodes, placement.cpus)
    fitting = [node for node in usable if len(node.cpus) >= wanted and node.number in placement.memory]
    if len(usable) < 2 or not fitting:
        return None
    return max(fitting, key=lambda node: (placement.last in node.cpus, len(node.cpus), -node.number))


def pin_to_one_node(wanted: int, root: Path = NODES_ROOT) -> None:
    """Have all threads of the process on one node, if `choose_numa_node` finds it."""
    nodes = read_nodes(root)
    if len(nodes) < 2:
        return
    placement = read_placement()
    home = choose_numa_node(nodes, placement, wanted)
    if home is None:
        return
    for task in (PROCESS_ROOT / "task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # a thread that has just ended
            os.sched_setaffinity(int(task.name), home.cpus)
    log.info(
        "staying on one NUMA node",
        extra={"node": home.number, "cpus": len(home.cpus), "of_nodes": [node.number for node in nodes]},
    )
