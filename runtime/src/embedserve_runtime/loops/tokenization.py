"""Tokenizes the bytes of texts in one pass: normalizes characters, joins them to words and splits words into subwords.
Texts with characters that the tables do not cover are left out.

Every index that depends on a text is checked against its bounds here.
"""

from __future__ import annotations

import numpy as np

from embedserve_runtime.loops.jit import loop
from embedserve_runtime.loops.subwords import MARK, Floats, encode_unigram, encode_wordpiece
from embedserve_runtime.loops.tries import Bytes, Int32s, Nodes, Places

# Classes of normalized characters. Runs of LETTER and of RUN are words, and so is each SIGN. A text with a character
# of class ODD is left out.
NOTHING, BLANK, LETTER, RUN, SIGN, ODD = range(6)
# Further classes of bytes. MANY: part of a character of several bytes. NAMED is added to the class of a byte with which
# the name of an added token may begin.
MANY, NAMED = 6, 0x80
# Columns of a normalized character: its class, its number of bytes, and the bytes.
CHARACTER = 6
# A text with a word of more bytes is left out.
MAX_WORD_BYTES = 4_096
# The tables have the code points below this one.
PLANE = 0x10000

_BYTES, _IDS = (f"Array({number}, 1, 'C', readonly=True)" for number in ("uint8", "int32"))


@loop()
def _find_end(data: bytes, place: int, characters: int) -> int:
    """Return where the next `characters` characters from `place` on end."""
    while place < len(data):
        if data[place] & 0xC0 != 0x80:
            if characters == 0:
                break
            characters -= 1
        place += 1
    return place


@loop()
def _decode_character(data: bytes, place: int, stop: int) -> tuple[int, int]:
    """Return the code point that begins at `place`, and where the next one begins. Code points beyond the first plane
    become the last one of it, which is not a character."""
    lead = int(data[place])
    if lead < 0xE0 and place + 1 < stop:
        return (lead & 0x1F) << 6 | (int(data[place + 1]) & 0x3F), place + 2
    if lead < 0xF0 and place + 2 < stop:
        return (lead & 0xF) << 12 | (int(data[place + 1]) & 0x3F) << 6 | (
            int(data[place + 2]) & 0x3F
        ), place + 3
    return PLANE - 1, place + 4


@loop()
def _is_name(data: bytes, place: int, stop: int, names: Bytes, starts: Int32s) -> bool:
    for name in range(len(starts) - 1):
        begin, size, same = int(starts[name]), int(starts[name + 1] - starts[name]), 0
        while same < size and place + same < stop:
            byte = int(data[place + same])
            if (byte + 32 if 65 <= byte <= 90 else byte) != names[begin + same]:
                break
            same += 1
        if same == size:
            return True
    return False


@loop()
def _copy_ids(from_: Int32s, ids: Int32s, at: int) -> int:
    for number in range(len(from_)):
        ids[at + number] = from_[number]
    return at + len(from_)


@loop(
    f"UniTuple(int64, 2)(Bytes(uint8, 1, 'C'), int64[::1], uint8[:, ::1], int32[::1], uint8[:, ::1], {_BYTES},"
    f"int32[::1], int32[::1], int32[::1], float64[::1], int64, int64, int64, boolean, float64, {_IDS}, {_IDS},"
    "int32[::1], int32[::1], uint8[::1])"
)
def read(
    data: bytes,
    lengths: Places,
    bytes_: Bytes,
    starts: Int32s,
    normalized: Bytes,
    names: Bytes,
    name_starts: Int32s,
    nodes: Nodes,
    numbers: Int32s,
    scores: Floats,
    unknown: int,
    most: int,
    inside: int,
    marked: bool,
    unknown_score: float,
    head: Int32s,
    tail: Int32s,
    ids: Int32s,
    cu_seqlens: Int32s,
    odd: Bytes,
) -> tuple[int, int]:
    """Tokenize texts into the last three arrays; return the number of ids and the number of texts that were left out.

    data: texts in UTF-8, one byte between two. lengths: characters of each.
    bytes_: shape (2, 256): the class of each byte of ASCII and what is made of it, MANY for the others; with NAMED
    where a name may begin.
    starts: shape (PLANE + 1,): where the characters that are made of a code point begin in `normalized`.
    normalized: shape (characters, CHARACTER).
    names: strings that no text may contain, in lower case, one after another; name_starts: shape (names + 1,).
    nodes, numbers: trie of the pieces. scores: those of a Unigram by id; unknown_score: that of a character without a
    piece. unknown: the id of the unknown token. most: the largest number of characters of a WordPiece's word; 0 for a
    Unigram. inside: the node of INSIDE.
    marked: whether MARK stands before each word.
    head, tail: ids around each text.
    cu_seqlens: shape (texts + 1,): where the ids of each text begin and end. odd: shape (texts,): 1 for texts that were
    left out, which have none.
    """
    ascii_only = len(data) == lengths.sum() + max(len(lengths) - 1, 0)
    word = np.empty(MAX_WORD_BYTES + CHARACTER, dtype=np.uint8)
    room = 1 if most else MAX_WORD_BYTES + CHARACTER + 1
    sums, ways = np.empty(room, dtype=np.float64), np.empty((room, 2), dtype=np.int32)
    at = place = cu_seqlens[0] = left_out = 0
    for text in range(len(lengths)):
        stop = min(place + lengths[text], len(data)) if ascii_only else _find_end(data, place, lengths[text])
        begun, fits = at, at + len(head) + len(tail) <= len(ids)
        if fits:
            at = _copy_ids(head, ids, at)
        kind, size, characters, made, last = NOTHING, 0, 0, 0, 0
        while fits:
            # The next normalized character: of those made of a code point, from `made` to before `last`, or of a byte.
            width = 1
            if made < last:
                class_, width = int(normalized[made, 0]), int(normalized[made, 1])
                byte, made = int(normalized[made, 2]), made + 1
            elif place >= stop:
                class_, byte = BLANK, 0
            else:
                class_, byte = int(bytes_[0, data[place]]), int(bytes_[1, data[place]])
                if class_ >= NAMED:
                    class_ = ODD if _is_name(data, place, stop, names, name_starts) else class_ - NAMED
                if class_ == MANY:
                    code, place = _decode_character(data, place, stop)
                    made, last = int(starts[code]), int(starts[code + 1])
                    continue
                place += 1
            if size > 0 and (class_ != kind or class_ == SIGN) and class_ != NOTHING:
                fits = at + size + len(tail) <= len(ids)
                if not fits:
                    break
                if most == 0:
                    at = encode_unigram(
                        nodes, numbers, word, size, scores, unknown, unknown_score, sums, ways, ids, at
                    )
                elif characters <= most:
                    at = encode_wordpiece(nodes, numbers, word, size, inside, unknown, ids, at)
                else:
                    ids[at] = unknown
                    at += 1
                size = 0
            if class_ == BLANK:
                if place >= stop and made >= last:
                    break
            elif class_ == ODD or size > MAX_WORD_BYTES:
                fits = False
            elif class_ != NOTHING:
                if size == 0:
                    kind, characters = class_, 0
                    if marked:
                        word[0] = MARK
                        size = characters = 1
                word[size] = byte
                for number in range(1, width):
                    word[size + number] = normalized[made - 1, 2 + number]
                size, characters = size + width, characters + 1
        at = _copy_ids(tail, ids, at) if fits else begun
        cu_seqlens[text + 1], odd[text] = at, not fits
        left_out += not fits
        place = stop + 1
    return at, left_out
