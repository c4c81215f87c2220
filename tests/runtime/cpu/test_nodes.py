"""The node that a process stays on, on machines with several NUMA nodes. Layouts are as the kernel tells them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from embedserve_runtime.cpu.nodes import (
    CpuPlacement,
    choose_numa_node,
    list_usable_nodes,
    parse_cpu_list,
    read_nodes,
    read_placement,
)

ONE = {0: "0-15"}
# Two sockets of 16 cores with two threads each: the second threads have the upper numbers.
TWO_SOCKETS = {0: "0-15,32-47", 1: "16-31,48-63"}
# Two sockets that number their CPUs in turn.
IN_TURN = {0: "0,2,4,6", 1: "1,3,5,7"}
# One EPYC with four nodes a socket.
FOUR = {0: "0-7", 1: "8-15", 2: "16-23", 3: "24-31"}
# The second node has memory only, as with CXL.
MEMORY_ONLY = {0: "0-31", 1: ""}
UNEVEN = {0: "0-3", 1: "4-15"}

# Prints the CPUs of a thread of before, of the calling one, and of one of afterwards.
STAYING = """
import json, os, sys, threading
from pathlib import Path
from embedserve_runtime.cpu.nodes import bind_to_one_node

masks, moved = [], threading.Event()
note = lambda: masks.append(sorted(os.sched_getaffinity(0)))
earlier = threading.Thread(target=lambda: (moved.wait(), note()))
earlier.start()
bind_to_one_node(1, Path(sys.argv[1]))
moved.set()
earlier.join()
note()
later = threading.Thread(target=note)
later.start()
later.join()
print(json.dumps(masks))
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path


def written(root: Path, layout: Mapping[int, str]) -> Path:
    for number, cpus in layout.items():
        (root / f"node{number}").mkdir()
        (root / f"node{number}" / "cpulist").write_text(f"{cpus}\n")
    (root / "possible").write_text("0\n")
    return root


# Layout, cpuset, nodes of its memory, CPU it ran on last, CPUs that it wants, where it stays and on which CPUs.
CASES: dict[str, tuple[Mapping[int, str], str, str, int, int, tuple[int, str] | None]] = {
    "one node": (ONE, "0-15", "0", 3, 4, None),
    "no node is told of": ({}, "0-15", "0", 3, 4, None),
    "the other node has memory only": (MEMORY_ONLY, "0-31", "0-1", 3, 8, None),
    "the kubelet has given CPUs of one node": (TWO_SOCKETS, "16-23", "0-1", 17, 8, None),
    "a quota that fits stays where it runs": (TWO_SOCKETS, "0-63", "0-1", 50, 8, (1, "16-31,48-63")),
    "a whole node fits": (TWO_SOCKETS, "0-63", "0-1", 2, 32, (0, "0-15,32-47")),
    "more than a node has": (TWO_SOCKETS, "0-63", "0-1", 2, 33, None),
    "no quota": (IN_TURN, "0-7", "0-1", 2, 8, None),
    "numbers in turn": (IN_TURN, "0-7", "0-1", 5, 2, (1, "1,3,5,7")),
    "four nodes": (FOUR, "0-31", "0-3", 20, 8, (2, "16-23")),
    "CPUs of its own on two of four nodes": (FOUR, "6-13", "0-3", 6, 4, (1, "8-13")),
    "CPUs of its own, too few on each": (FOUR, "6-9", "0-3", 6, 4, None),
    "the node where it runs is too small": (UNEVEN, "0-15", "0-1", 1, 8, (1, "4-15")),
    "its memory may lie on the other node only": (TWO_SOCKETS, "0-63", "1", 2, 8, (1, "16-31,48-63")),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_process_stays_on_a_node_that_has_what_it_may_use(
    root: Path, case: tuple[Mapping[int, str], str, str, int, int, tuple[int, str] | None]
) -> None:
    layout, cpus, memory, last, needed, want = case
    home = choose_numa_node(
        read_nodes(written(root, layout)),
        CpuPlacement(parse_cpu_list(cpus), parse_cpu_list(memory), last),
        needed,
    )
    assert (home and (home.number, home.cpus)) == (want and (want[0], parse_cpu_list(want[1])))


@pytest.mark.parametrize(
    ("text", "want"), [("0", {0}), ("0-3", {0, 1, 2, 3}), ("0-1,8-9,12", {0, 1, 8, 9, 12}), ("", set())]
)
def test_lists_of_cpus_are_read_in_the_kernels_notation(text: str, want: set[int]) -> None:
    assert parse_cpu_list(text) == want


@pytest.mark.parametrize(
    ("mask", "want_nodes"), [({0, 2}, [0]), ({1, 2}, [0, 1]), ({3}, [1]), ({0, 1, 2, 3}, [0, 1])]
)
def test_the_nodes_of_a_process_are_those_of_its_cpus(
    root: Path, mask: set[int], want_nodes: list[int]
) -> None:
    nodes = list_usable_nodes(read_nodes(written(root, IN_TURN)), frozenset(mask))
    assert [node.number for node in nodes] == want_nodes
    assert frozenset().union(*(node.cpus for node in nodes)) == mask


def test_the_kernel_says_where_this_process_runs() -> None:
    placement = read_placement()
    assert placement.cpus == os.sched_getaffinity(0)
    assert placement.last < (os.cpu_count() or 1)
    assert placement.memory


def test_a_name_with_blanks_and_brackets_does_not_shift_the_fields(tmp_path: Path) -> None:
    numbers = " ".join(str(number) for number in range(4, 60))
    (tmp_path / "stat").write_text(f"12 (a) b (c)) S {numbers}\n")
    (tmp_path / "status").write_text("Name:\ta) b (c\nMems_allowed_list:\t0-1\n")
    placement = read_placement(tmp_path)
    # The 39th field, as proc(5) counts them.
    assert (placement.last, placement.memory) == (39, frozenset({0, 1}))


@pytest.mark.parametrize("parts", [1, 2], ids=["one node", "two nodes"])
def test_all_threads_move_and_only_where_there_are_several_nodes(root: Path, parts: int) -> None:
    mine = sorted(os.sched_getaffinity(0))
    if len(mine) < 2:
        pytest.skip("needs two CPUs")
    nodes = [mine] if parts == 1 else [mine[:1], mine[1:]]
    written(root, {number: ",".join(map(str, cpus)) for number, cpus in enumerate(nodes)})
    completed = subprocess.run(
        [sys.executable, "-c", STAYING, str(root)], check=True, capture_output=True, text=True
    )
    masks = json.loads(completed.stdout)
    assert masks[0] in nodes
    assert masks == [masks[0]] * 3
