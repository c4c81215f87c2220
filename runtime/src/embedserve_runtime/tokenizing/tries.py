"""Many strings at a time, looked for at every place of a text: a trie in arrays, walked by numpy.

A node is a number. The child of a node by a byte is `base[node] + byte` where `parent` of that is the node, so a step
of all places takes a few array operations and no loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Places = NDArray[np.int64]

ROOT, NOWHERE = 0, -1
# Nodes to a number that is taken: the fewer, the sooner children find room.
_SPARE = 2.2
_BYTES = 256


class Found(NamedTuple):
    """Strings of one length. places: where they begin. numbers: which they are."""

    length: int
    places: Places
    numbers: NDArray[np.int32]


class Trie:
    def __init__(self, strings: Mapping[bytes, int]) -> None:
        """strings: not empty, without NUL, each with a number from 0 on."""
        edges = _edges(sorted(strings))
        numbers, base, size = _numbered(edges)
        self._base = np.zeros(size, dtype=np.int64)
        self._parent = np.full(size, NOWHERE, dtype=np.int64)
        self._number = np.full(size, NOWHERE, dtype=np.int32)
        self._base[numbers] = base
        self._parent[numbers[edges.children]] = numbers[edges.parents]
        self._number[numbers[edges.ends]] = [strings[string] for string in sorted(strings)]

    def child(self, node: int, byte: int) -> int:
        """NOWHERE where there is none."""
        place = int(self._base[node]) + byte
        return place if self._parent[place] == node else NOWHERE

    def matches(self, text: Bytes, nodes: Places) -> Iterator[Found]:
        """Strings that begin at the places of `text`, the shorter ones first. They end before its last byte, NUL.

        nodes: for each place, where its walk begins: ROOT, a node, or NOWHERE for none.
        """
        places = np.flatnonzero(nodes >= 0)
        node = nodes.take(places)
        length = 0
        # `take` with this mode, since looking for indices out of bounds costs as much as taking.
        while len(places):
            step = self._base.take(node, mode="clip")
            step += text.take(places + length, mode="clip")
            there = np.flatnonzero(self._parent.take(step, mode="clip") == node)
            places, node = places.take(there, mode="clip"), step.take(there, mode="clip")
            length += 1
            numbers = self._number.take(node, mode="clip")
            hits = np.flatnonzero(numbers >= 0)
            yield Found(length, places.take(hits, mode="clip"), numbers.take(hits, mode="clip"))


class _Edges(NamedTuple):
    """Of a trie whose nodes are counted in the order of sorted strings, the root first.

    parents, bytes, children: of each edge, the parents ascending. ends: node of each string. nodes: how many.
    """

    parents: Places
    bytes: Places
    children: Places
    ends: Places
    nodes: int


def _edges(strings: list[bytes]) -> _Edges:
    longest = max(map(len, strings), default=1)
    letters = np.array(strings, dtype=f"S{longest}").view(np.uint8).reshape(-1, longest)
    # A node begins where a string differs for the first time from the one before it.
    shared = np.zeros(letters.shape, dtype=bool)
    shared[1:] = np.logical_and.accumulate(letters[1:] == letters[:-1], axis=1)
    begins = (letters != 0) & ~shared
    nodes = np.zeros((len(strings), longest + 1), dtype=np.int32)
    nodes[:, 1:][begins] = np.arange(1, np.count_nonzero(begins) + 1)
    np.maximum.accumulate(nodes[:, 1:], axis=0, out=nodes[:, 1:])
    rows, columns = np.nonzero(begins)
    parents = nodes[rows, columns].astype(np.int64)
    order = np.argsort(parents, kind="stable")
    lengths = np.count_nonzero(letters, axis=1)
    return _Edges(
        parents=parents[order],
        bytes=letters[rows, columns][order].astype(np.int64),
        children=nodes[rows, columns + 1][order].astype(np.int64),
        ends=nodes[np.arange(len(strings)), lengths].astype(np.int64),
        nodes=len(rows) + 1,
    )


def _numbered(edges: _Edges) -> tuple[Places, Places, int]:
    """A number for each node and the base of its children, such that no two nodes have one number; and the bound of
    all. Bases are drawn until they fit, for the nodes with the most children first."""
    heads, first, counts = np.unique(edges.parents, return_index=True, return_counts=True)
    size = int(edges.nodes * _SPARE) + _BYTES
    numbers, base = np.zeros(edges.nodes, dtype=np.int64), np.zeros(edges.nodes, dtype=np.int64)
    taken, owner = np.zeros(size + _BYTES, dtype=bool), np.zeros(size + _BYTES, dtype=np.int64)
    taken[ROOT] = True
    source = np.random.default_rng(0)
    for fewest, most in ((33, _BYTES), (9, 32), (4, 8), (2, 3), (1, 1)):
        todo = np.flatnonzero((counts >= fewest) & (counts <= most))
        while len(todo):
            drawn = source.integers(1, size, len(todo))
            at = ranges(first[todo], counts[todo])
            whose = np.repeat(np.arange(len(todo)), counts[todo])
            wanted = drawn[whose] + edges.bytes[at]
            owner[wanted] = whose
            fits = np.ones(len(todo), dtype=bool)
            fits[whose[taken[wanted] | (owner[wanted] != whose)]] = False
            kept = fits[whose]
            taken[wanted[kept]] = True
            numbers[edges.children[at[kept]]] = wanted[kept]
            base[heads[todo[fits]]] = drawn[fits]
            todo = todo[~fits]
    return numbers, base, len(taken)


def ranges(starts: Places, lengths: Places) -> Places:
    """start, start + 1, ... of each range, one after the other."""
    if not len(lengths):
        return np.zeros(0, dtype=np.int64)
    ends = np.cumsum(lengths)
    places: Places = np.repeat(starts - ends + lengths, lengths)
    places += np.arange(ends[-1])
    return places
