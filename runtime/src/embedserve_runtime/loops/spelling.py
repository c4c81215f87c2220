"""A word to its pieces, as the models of the library tokenizers find them.

Source of the rules: `WordPiece::tokenize` and `Unigram::encode_optimized` of tokenizers 0.23.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from embedserve_runtime.loops.compiling import loop
from embedserve_runtime.loops.tries import BASE, BYTE, NONE, ROOT, STRING, Bytes, Int32s, Nodes

# In strings of tries, and no bytes of UTF-8. MARK: what stands before each word. INSIDE: before pieces that go on a
# word.
MARK, INSIDE = 0xFF, 0xFE

Floats = NDArray[np.float64]


@loop()
def _step(nodes: Nodes, node: int, byte: int) -> tuple[int, int, bool]:
    """Where the child is that a byte leads to, what stands there, and whether it is one. node: what stands at it, so
    that each node is read once: a call of `tries.child` for each byte takes a tenth longer."""
    place = (node >> BASE) + byte
    child = int(nodes[place])
    return place, child, child & BYTE == byte


@loop()
def longest_first(
    nodes: Nodes, numbers: Int32s, word: Bytes, size: int, inside: int, unknown: int, ids: Int32s, at: int
) -> int:
    """WordPiece: the longest piece that fits, again and again; the unknown token where none does. To `ids` from `at`
    on; where they end. inside: node of INSIDE."""
    begun, place, root = at, 0, ROOT
    while place < size:
        node, found, end, ahead = int(nodes[root]), NONE, place, place
        while ahead < size:
            child, node, is_one = _step(nodes, node, int(word[ahead]))
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
def _width(lead: int) -> int:
    """Bytes of the character that begins with this one."""
    if lead < 0xC0 or lead >= INSIDE:
        return 1
    if lead < 0xE0:
        return 2
    return 3 if lead < 0xF0 else 4


@loop()
def _whole(nodes: Nodes, numbers: Int32s, word: Bytes, start: int, stop: int, unknown: int) -> int:
    """The piece that is all from start to before stop."""
    node, child = int(nodes[ROOT]), ROOT
    for place in range(start, stop):
        child, node, is_one = _step(nodes, node, int(word[place]))
        if not is_one:
            return unknown
    return int(numbers[child]) if node & STRING else unknown


@loop()
def _followed_back(
    nodes: Nodes,
    numbers: Int32s,
    word: Bytes,
    size: int,
    unknown: int,
    ways: NDArray[np.int32],
    ids: Int32s,
    at: int,
) -> int:
    """Unknown pieces in a row are one token, with the id of the piece that is written like all of them, if there is
    one."""
    low, place = at, size
    while place > 0:
        piece, start = int(ways[place, 0]), int(ways[place, 1])
        if piece == unknown:
            while start > 0 and ways[start, 0] == unknown:
                start = int(ways[start, 1])
            piece = _whole(nodes, numbers, word, start, place, unknown)
        ids[at] = piece
        at, place = at + 1, start
    high = at - 1
    while low < high:
        ids[low], ids[high] = ids[high], ids[low]
        low, high = low + 1, high - 1
    return at


@loop()
def best_sum(
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
    """Unigram: the pieces with the largest sum of scores; of equal sums the one whose last piece is longest. To `ids`
    from `at` on; where they end.

    sums, ways: room, shapes (size + 1,) and (size + 1, 2): for each place the best sum up to there, and the last piece
    and where it begins.
    """
    for place in range(size + 1):
        ways[place, 1] = NONE
    sums[0] = 0.0
    place = 0
    while place < size:
        after = min(place + _width(word[place]), size)
        node, ahead, alone = int(nodes[ROOT]), place, False
        while ahead < size:
            child, node, is_one = _step(nodes, node, int(word[ahead]))
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
    return _followed_back(nodes, numbers, word, size, unknown, ways, ids, at)
