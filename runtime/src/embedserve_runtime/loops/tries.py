"""Double-array tries: maps from byte strings to numbers that take one step for each byte of a text.

A node is a number of 32 bits: the byte that leads to it, whether a string ends there, and the base of its children,
which are at base + byte. No two nodes have one base, so a node that has the byte is the child. 16 nodes lie in one line
of the processor's cache; numbers of strings lie apart, since a walk needs only the last.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embedserve_runtime.loops.jit import loop

ROOT, NONE = 0, -1
# Fields of a node. BASE: the number of bits by which the base of its children is shifted.
BYTE, STRING, BASE = 0xFF, 0x100, 9
# UTF-8 does not use this byte, so it leads nowhere.
FREE = 0xC0
_BYTES = 256
_MAX_NODES = 1 << (31 - BASE)

Bytes = NDArray[np.uint8]
Places = NDArray[np.int64]
Int32s = NDArray[np.int32]
Nodes = Int32s


class Trie(NamedTuple):
    """A double-array trie. nodes: int32, shape (nodes,). numbers: int32, the same shape, of the strings that end
    there."""

    nodes: Nodes
    numbers: Int32s


def build_trie(strings: Mapping[bytes, int]) -> Trie | None:
    """Build the trie of strings; None for more than some million nodes. strings: none empty, none with FREE, each with
    a number from 0 on."""
    ordered = sorted(strings)
    pool = np.frombuffer(b"".join(ordered), np.uint8)
    ends = np.cumsum([0, *map(len, ordered)])
    of_strings = np.fromiter(map(strings.__getitem__, ordered), np.int32, len(ordered))
    todo = np.zeros((len(pool) + 1, 4), dtype=np.int64)
    size = len(pool) + 4 * _BYTES
    while True:
        nodes = np.full(size, FREE, dtype=np.int32)
        numbers, bases = np.full(size, NONE, dtype=np.int32), np.zeros(size, dtype=np.uint8)
        if bound := _fill_double_array(pool, ends, of_strings, todo, nodes, numbers, bases):
            return Trie(nodes[:bound].copy(), numbers[:bound].copy()) if bound <= _MAX_NODES else None
        size *= 2


def child(nodes: Nodes, node: int, byte: int) -> int:
    """Return the child of a node that a byte leads to; NONE where there is none."""
    place = (int(nodes[node]) >> BASE) + byte
    return place if int(nodes[place]) & BYTE == byte else NONE


@loop(
    "int64(Array(uint8, 1, 'C', readonly=True), int64[::1], int32[::1], int64[:, ::1], int32[::1], int32[::1],"
    "uint8[::1])"
)
def _fill_double_array(
    pool: Bytes, ends: Places, of_strings: Int32s, todo: Places, nodes: Nodes, numbers: Int32s, bases: Bytes
) -> int:
    """Fill in the nodes of a trie; return how many are used, or 0 where there are too few.

    pool: the strings in order, one after another. ends: shape (strings + 1,). todo: shape (len(pool) + 1, 4), the queue
    of nodes whose children have no places yet: the strings from `low` to before `high` share `depth` bytes there.
    nodes: all FREE. numbers: all NONE. bases: scratch, all zeros.
    """
    letters, firsts = np.empty(_BYTES, dtype=np.int64), np.empty(_BYTES + 1, dtype=np.int64)
    todo[0, 0], todo[0, 1], todo[0, 2], todo[0, 3] = ROOT, 0, len(of_strings), 0
    # Base 0 is that of nodes without children.
    bases[0] = 1
    filled, done, front, bound = 1, 0, 1, _BYTES
    while done < filled:
        node, low, high, depth = todo[done, 0], todo[done, 1], todo[done, 2], todo[done, 3]
        done += 1
        if low < high and ends[low + 1] - ends[low] == depth:
            nodes[node] |= STRING
            numbers[node] = of_strings[low]
            low += 1
        children = 0
        for string in range(low, high):
            byte = int(pool[ends[string] + depth])
            if children == 0 or byte != letters[children - 1]:
                letters[children], firsts[children] = byte, string
                children += 1
        if children == 0:
            continue
        firsts[children] = high
        # The first place from `front` on where all children fit. Beyond `bound` all places are free.
        place, seen, taken, fits = max(front, letters[0] + 1), 0, 0, False
        while not fits:
            if place + 2 * _BYTES > len(nodes):
                return 0
            base = place - letters[0]
            fits = bases[base] == 0
            for number in range(children):
                if not fits or nodes[base + letters[number]] != FREE:
                    fits = False
                    break
            if not fits:
                seen += 1
                taken += nodes[place] != FREE
                place += 1
        # Next to no room was left before it.
        if 20 * taken >= 19 * seen:
            front = place
        base = place - letters[0]
        bases[base] = 1
        bound = max(bound, base + _BYTES)
        nodes[node] |= base << BASE
        for number in range(children):
            place = base + letters[number]
            nodes[place] = letters[number]
            todo[filled, 0], todo[filled, 1] = place, firsts[number]
            todo[filled, 2], todo[filled, 3] = firsts[number + 1], depth + 1
            filled += 1
    return bound
