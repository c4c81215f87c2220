"""Byte strings, of which those that a text goes on with are found by one step a byte: a double array.

A node is a row of four numbers: BASE, the node's children are at BASE + byte; PARENT, the node that this one is a child
of; STRING, the number of the string that ends here, or NONE; the fourth fills 16 bytes up, so that a node lies in one
line of the processor's cache.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from embedserve_runtime.loops.compiling import loop

BASE, PARENT, STRING = 0, 1, 2
ROOT, NONE = 0, -1
_WIDTH = 4
_BYTES = 256
# The root is no node's child.
_NOBODY = -2

Nodes = NDArray[np.int32]
Bytes = NDArray[np.uint8]
Places = NDArray[np.int64]


def trie_of(strings: Mapping[bytes, int]) -> Nodes:
    """int32, shape (nodes, 4). strings: none empty, each with a number from 0 on."""
    ordered = sorted(strings)
    pool = np.frombuffer(b"".join(ordered), dtype=np.uint8)
    ends = np.cumsum([0, *map(len, ordered)])
    numbers = np.fromiter(map(strings.__getitem__, ordered), dtype=np.int32, count=len(ordered))
    todo = np.zeros((len(pool) + 1, 4), dtype=np.int64)
    size = len(pool) + 4 * _BYTES
    while True:
        nodes = np.full((size, _WIDTH), NONE, dtype=np.int32)
        if bound := _built(pool, ends, numbers, todo, nodes):
            return nodes[:bound].copy()
        size *= 2


def child(nodes: Nodes, node: int, byte: int) -> int:
    """NONE where there is none."""
    place = int(nodes[node, BASE]) + byte
    return place if nodes[place, PARENT] == node else NONE


@loop("int64(Array(uint8, 1, 'C', readonly=True), int64[::1], int32[::1], int64[:, ::1], int32[:, ::1])")
def _built(pool: Bytes, ends: Places, numbers: NDArray[np.int32], todo: Places, nodes: Nodes) -> int:
    """How many rows of `nodes` are used; 0 where there are too few.

    pool: the strings in order, one after the other. ends: shape (strings + 1,). todo: shape (len(pool) + 1, 4), room
    for nodes whose children have no places yet: the strings from `low` to before `high` share `depth` bytes there.
    nodes: all NONE.
    """
    letters, firsts = np.empty(_BYTES, dtype=np.int64), np.empty(_BYTES + 1, dtype=np.int64)
    nodes[ROOT, PARENT] = _NOBODY
    todo[0, 0], todo[0, 1], todo[0, 2], todo[0, 3] = ROOT, 0, len(numbers), 0
    filled, done, front, bound = 1, 0, 1, _BYTES
    while done < filled:
        node, low, high, depth = todo[done, 0], todo[done, 1], todo[done, 2], todo[done, 3]
        done += 1
        nodes[node, BASE] = 0
        if low < high and ends[low + 1] - ends[low] == depth:
            nodes[node, STRING] = numbers[low]
            low += 1
        children = 0
        for string in range(low, high):
            byte = pool[ends[string] + depth]
            if children == 0 or byte != letters[children - 1]:
                letters[children], firsts[children] = byte, string
                children += 1
        if children == 0:
            continue
        firsts[children] = high
        # The first place from `front` on where all children fit. Beyond `bound` all places are free.
        place, seen, taken, fits = max(front, letters[0]), 0, 0, False
        while not fits:
            if place + 2 * _BYTES > len(nodes):
                return 0
            fits = True
            for number in range(children):
                if nodes[place - letters[0] + letters[number], PARENT] != NONE:
                    fits = False
                    break
            if not fits:
                seen += 1
                taken += nodes[place, PARENT] != NONE
                place += 1
        # Next to no room was left before it.
        if 20 * taken >= 19 * seen:
            front = place
        base = place - letters[0]
        bound = max(bound, base + _BYTES)
        nodes[node, BASE] = base
        for number in range(children):
            place = base + letters[number]
            nodes[place, PARENT] = node
            todo[filled, 0], todo[filled, 1] = place, firsts[number]
            todo[filled, 2], todo[filled, 3] = firsts[number + 1], depth + 1
            filled += 1
    return bound
