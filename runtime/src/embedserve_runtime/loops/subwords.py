"""Splits a word into subwords, as WordPiece and Unigram models of the tokenizers library do.

Source of the rules: `WordPiece::tokenize` and `Unigram::encode_optimized` of tokenizers 0.23.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from embedserve_runtime.loops.jit import loop
from embedserve_runtime.loops.tries import BASE, BYTE, NONE, ROOT, STRING, Bytes, Int32s, Nodes

# These bytes, which UTF-8 does not use, stand in the strings of a trie. MARK: before each word. INSIDE: before pieces
# that continue a word.
MARK, INSIDE = 0xFF, 0xFE

Floats = NDArray[np.float64]


@loop()
def _follow_byte(nodes: Nodes, node: int, byte: int) -> tuple[int, int, bool]:
    """Return the place to which a byte leads, the node there, and whether it is a child of this one. node: its value,
    so that each node is read once: a call of `tries.child` for each byte takes a tenth longer."""
    place = (node >> BASE) + byte
    child = int(nodes[place])
    return place, child, child & BYTE == byte


@loop()
def encode_wordpiece(
    nodes: Nodes, numbers: Int32s, word: Bytes, size: int, inside: int, unknown: int, ids: Int32s, at: int
) -> int:
    """Write the ids of WordPiece, the longest piece that matches at each place, to `ids` from `at` on; the unknown id
    for the whole word where none matches. Returns where the ids end. inside: the node of INSIDE."""
    begun, place, root = at, 0, ROOT
    while place < size:
        node, found, end, ahead = int(nodes[root]), NONE, place, place
        while ahead < size:
            child, node, is_one = _follow_byte(nodes, node, int(word[ahead]))
            ahead += 1
            if not is_one:
                break
            if node & STRING:
                found, end = child, ahead
        if found == NONE:
            ids[begun] = unknown
            return begun + 1
        ids[at] = numbers[found]
        at, place, root = at + 1, end, inside
    return at


@loop()
def _character_bytes(lead: int) -> int:
    """Return the number of bytes of the character that begins with this one."""
    if lead < 0xC0 or lead >= INSIDE:
        return 1
    if lead < 0xE0:
        return 2
    return 3 if lead < 0xF0 else 4


@loop()
def _find_piece(nodes: Nodes, numbers: Int32s, word: Bytes, start: int, stop: int, unknown: int) -> int:
    """Return the id of the piece that spans `start` to `stop`; `unknown` where there is none."""
    node, child = int(nodes[ROOT]), ROOT
    for place in range(start, stop):
        child, node, is_one = _follow_byte(nodes, node, int(word[place]))
        if not is_one:
            return unknown
    return int(numbers[child]) if node & STRING else unknown


@loop()
def _trace_back(
    nodes: Nodes,
    numbers: Int32s,
    word: Bytes,
    size: int,
    unknown: int,
    ways: NDArray[np.int32],
    ids: Int32s,
    at: int,
) -> int:
    """Write the ids of the best segmentation to `ids` from `at` on, and return where they end.

    Consecutive unknown pieces become one token, with the id of the piece that is spelled like all of them, if there
    is one.
    """
    low, place = at, size
    while place > 0:
        piece, start = int(ways[place, 0]), int(ways[place, 1])
        if piece == unknown:
            while start > 0 and ways[start, 0] == unknown:
                start = int(ways[start, 1])
            piece = _find_piece(nodes, numbers, word, start, place, unknown)
        ids[at] = piece
        at, place = at + 1, start
    high = at - 1
    while low < high:
        ids[low], ids[high] = ids[high], ids[low]
        low, high = low + 1, high - 1
    return at


@loop()
def encode_unigram(
    nodes: Nodes,
    numbers: Int32s,
    word: Bytes,
    size: int,
    scores: Floats,
    unknown: int,
    unknown_score: float,
    sums: Floats,
    ways: NDArray[np.int32],
    ids: Int32s,
    at: int,
) -> int:
    """Write the ids of Unigram, the pieces with the largest sum of scores, to `ids` from `at` on, and return where they
    end. Of equal sums the one with the longest last piece is taken.

    sums, ways: scratch arrays, shapes (size + 1,) and (size + 1, 2): for each place the best sum up to there, and the
    last piece with its start.
    """
    for place in range(size + 1):
        ways[place, 1] = NONE
    sums[0] = 0.0
    place = 0
    while place < size:
        after = min(place + _character_bytes(word[place]), size)
        node, ahead, alone = int(nodes[ROOT]), place, False
        while ahead < size:
            child, node, is_one = _follow_byte(nodes, node, int(word[ahead]))
            ahead += 1
            if not is_one:
                break
            if node & STRING:
                piece = int(numbers[child])
                offered = sums[place] + scores[piece]
                if ways[ahead, 1] == NONE or offered > sums[ahead]:
                    sums[ahead], ways[ahead, 0], ways[ahead, 1] = offered, piece, place
                alone |= ahead == after
        if not alone:
            offered = sums[place] + unknown_score
            if ways[after, 1] == NONE or offered > sums[after]:
                sums[after], ways[after, 0], ways[after, 1] = offered, unknown, place
        place = after
    return _trace_back(nodes, numbers, word, size, unknown, ways, ids, at)
