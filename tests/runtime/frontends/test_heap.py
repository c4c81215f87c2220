"""Memory that large answers leave in the C library's arenas goes back to the operating system."""

from __future__ import annotations

import subprocess
import sys

import pytest

from embedserve_runtime.frontends.heap import MIN_FREE_BYTES, Heap, find_heap

MIB = 2**20
# In a process of its own, since what other tests have allocated would count. The first block raises the size from which
# glibc maps allocations to its own; each small block behind a large one keeps the arena's end from being given back.
LEAVE_FREE_MEMORY = """
import os
from embedserve_runtime.frontends.heap import find_heap

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

first = bytearray(b"1") * 12_000_000
del first
large, small = [], []
for _ in range(30):
    large.append(bytearray(b"1") * 11_000_000)
    small.append(bytearray(b"1") * 100_000)
large.clear()
heap = find_heap()
print(heap.get_free_bytes(), resident())
heap.trim_if_worthwhile()
print(heap.get_free_bytes(), resident())
"""


@pytest.mark.skipif(find_heap() is None, reason="the C library does not tell about its heap")
def test_free_memory_in_the_arenas_goes_back_to_the_operating_system() -> None:
    run = subprocess.run(
        [sys.executable, "-c", LEAVE_FREE_MEMORY], check=True, capture_output=True, text=True
    )
    (free, before), (_, after) = (map(int, line.split()) for line in run.stdout.splitlines())
    assert free > 250 * MIB
    assert before - after > 250 * MIB


@pytest.mark.parametrize(("free_bytes", "is_trimmed"), [(MIN_FREE_BYTES - 1, False), (MIN_FREE_BYTES, True)])
def test_the_heap_is_trimmed_where_much_of_it_is_free(free_bytes: int, is_trimmed: bool) -> None:
    trims: list[bool] = []
    Heap(lambda: free_bytes, lambda: trims.append(True)).trim_if_worthwhile()
    assert bool(trims) == is_trimmed
