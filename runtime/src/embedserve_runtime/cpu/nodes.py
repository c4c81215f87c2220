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

from embedserve_runtime.cpu.quota import list_allowed_cpus

NODES_ROOT = Path("/sys/devices/system/node")
PROCESS_ROOT = Path("/proc/self")
# In /proc/self/stat, counted from the state, which follows the name: the CPU that it ran on last.
LAST_CPU_FIELD = 36

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NumaNode:
    """A NUMA node that has CPUs."""

    number: int
    cpus: frozenset[int]


@dataclass(frozen=True, slots=True)
class CpuPlacement:
    """The CPUs and memory nodes that the kernel lets a process use, and the CPU that it ran on last.

    cpus: its affinity mask (cpuset). memory: numbers of the nodes that its memory may lie on. last: the CPU that it ran
    on last.
    """

    cpus: frozenset[int]
    memory: frozenset[int]
    last: int


def read_nodes(root: Path = NODES_ROOT) -> tuple[NumaNode, ...]:
    """Read the memory nodes by number; none where the kernel lists none."""
    files = {int(file.parent.name.removeprefix("node")): file for file in root.glob("node[0-9]*/cpulist")}
    nodes = (NumaNode(number, parse_cpu_list(files[number].read_text().strip())) for number in sorted(files))
    return tuple(node for node in nodes if node.cpus)


def read_placement(root: Path = PROCESS_ROOT) -> CpuPlacement:
    """Read the placement of this process."""
    fields = dict(line.split(":", 1) for line in (root / "status").read_text().splitlines() if ":" in line)
    last = (root / "stat").read_text().rpartition(")")[2].split()[LAST_CPU_FIELD]
    return CpuPlacement(
        list_allowed_cpus(), parse_cpu_list(fields.get("Mems_allowed_list", "").strip()), int(last)
    )


def parse_cpu_list(text: str) -> frozenset[int]:
    """Parse a list of CPUs or nodes in the kernel's notation, such as `0-3,8`."""
    ranges = (part.partition("-") for part in text.split(",") if part)
    return frozenset(cpu for first, _, last in ranges for cpu in range(int(first), int(last or first) + 1))


def list_usable_nodes(nodes: Sequence[NumaNode], cpus: frozenset[int]) -> tuple[NumaNode, ...]:
    """List the nodes that have some of these CPUs, each with those CPUs only."""
    return tuple(NumaNode(node.number, node.cpus & cpus) for node in nodes if node.cpus & cpus)


def choose_numa_node(nodes: Sequence[NumaNode], placement: CpuPlacement, cpus: int) -> NumaNode | None:
    """Choose the node to stay on, with those of its CPUs that may be used.

    None where only one can be used anyway, or where no node whose memory may be used has `cpus` CPUs.
    """
    usable = list_usable_nodes(nodes, placement.cpus)
    fitting = [node for node in usable if len(node.cpus) >= cpus and node.number in placement.memory]
    if len(usable) < 2 or not fitting:
        return None
    return max(fitting, key=lambda node: (placement.last in node.cpus, len(node.cpus), -node.number))


def bind_to_one_node(cpus: int, root: Path = NODES_ROOT) -> None:
    """Bind all threads of the process to the node that `choose_numa_node` chooses, if any."""
    nodes = read_nodes(root)
    if len(nodes) < 2:
        return
    placement = read_placement()
    node = choose_numa_node(nodes, placement, cpus)
    if node is None:
        return
    for task in (PROCESS_ROOT / "task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # a thread that has just ended
            os.sched_setaffinity(int(task.name), node.cpus)
    log.info(
        "staying on one NUMA node",
        extra={"node": node.number, "cpus": len(node.cpus), "of_nodes": [node.number for node in nodes]},
    )
