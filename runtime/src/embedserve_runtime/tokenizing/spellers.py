"""Pieces of many words at a time, as the models of the library tokenizers find them in one.

Words are bytes: ASCII, with MARK in the place of the sign that a pre-tokenizer puts before a word.

Source of the rules: `WordPiece::tokenize` and `Unigram::encode_optimized` of tokenizers 0.23.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np

from embedserve_runtime.engines.base import BoolArray, Int32Array
from embedserve_runtime.tokenizing.memory import LONGEST
from embedserve_runtime.tokenizing.tries import NOWHERE, ROOT, Bytes, Places, Trie, ranges

# Bytes that no word has.
MARK, _CONTINUED = 1, 2


class Spelled(NamedTuple):
    """ids of all words, one word after the other, and how many each has."""

    ids: Int32Array
    counts: Places


class Speller(Protocol):
    @property
    def longest(self) -> int:
        """Bytes of the longest word that may be asked for."""
        ...

    @property
    def letters(self) -> frozenset[int]:
        """Bytes of which words may consist."""
        ...

    def spell(self, text: Bytes, starts: Places, lengths: Places) -> Spelled:
        """text: uint8, holding words of at least one byte, the last one before its end."""
        ...


def speller_of(model: Mapping[str, Any], mark: str) -> Speller | None:
    """model: of tokenizer.json. mark: what stands before each word, or nothing. None for other models, and where the
    mark itself is no piece of a Unigram."""
    match model:
        case {"type": "WordPiece"} if model["unk_token"] in model["vocab"]:
            return Greedy(model, mark)
        case {"type": "Unigram"} if not model.get("byte_fallback"):
            built = Viterbi(model, mark)
            return built if not mark or MARK in built.letters else None
        case _:
            return None


class Greedy:
    """WordPiece: the longest piece that fits, again and again; the unknown token where none does."""

    def __init__(self, model: Mapping[str, Any], mark: str) -> None:
        vocabulary, prefix = model["vocab"], model["continuing_subword_prefix"]
        pieces = dict(_written(vocabulary, mark))
        continued = {
            piece[len(prefix) :]: number for piece, number in vocabulary.items() if piece.startswith(prefix)
        }
        pieces |= {bytes([_CONTINUED]) + piece: number for piece, number in _written(continued, mark)}
        self._trie = Trie(pieces)
        self._continued = self._trie.child(ROOT, _CONTINUED)
        self._unknown = vocabulary[model["unk_token"]]
        self.longest = min(LONGEST, model["max_input_chars_per_word"])
        self.letters = frozenset((MARK, *range(0x21, 0x7F)))

    def spell(self, text: Bytes, starts: Places, lengths: Places) -> Spelled:
        words, begins, ends = _copied(text, starts, lengths)
        nodes = np.full(len(words), self._continued, dtype=np.int64)
        nodes[begins] = ROOT
        fits, ids = np.zeros(len(words), dtype=np.int64), np.zeros(len(words), dtype=np.int32)
        for length, places, numbers in self._trie.matches(words, nodes):
            fits[places], ids[places] = length, numbers
        taken = np.zeros(len(words), dtype=bool)
        failed = [np.zeros(0, dtype=np.int64)]
        word, place = np.arange(len(begins)), begins
        while len(word):
            step = fits.take(place)
            failed.append(word[step == 0])
            taken[place] = True
            place = place + step
            more = np.flatnonzero((step > 0) & (words.take(place) != 0))
            word, place = word.take(more), place.take(more)
        for number in np.concatenate(failed):
            taken[begins[number] + 1 : ends[number]] = False
            ids[begins[number]] = self._unknown
        return _spelled(ids, taken, begins)


class Viterbi:
    """Unigram: the pieces with the largest sum of scores; of two equal sums the one whose last piece is longer."""

    def __init__(self, model: Mapping[str, Any], mark: str) -> None:
        # Of pieces that are listed twice the library takes the last.
        pieces = dict(_written({piece: number for number, (piece, _) in enumerate(model["vocab"])}, mark))
        self._trie = Trie(pieces)
        self._scores = np.array([score for _, score in model["vocab"]], dtype=np.float64)
        self._unknown = model["unk_id"]
        unknown = next((piece for piece, number in pieces.items() if number == self._unknown), b"")
        self._unknown_length = len(unknown)
        self._unknown_runs = [pieces.get(unknown * count, self._unknown) for count in range(LONGEST + 1)]
        self.longest = LONGEST
        # With a piece for each letter no word is without a way, and none needs the unknown token.
        self.letters = frozenset(piece[0] for piece in pieces if len(piece) == 1)

    def spell(self, text: Bytes, starts: Places, lengths: Places) -> Spelled:
        words, begins, ends = _copied(text, starts, lengths)
        via, piece_starts, piece_ids = self._best(words, begins, lengths)
        taken, ids = np.zeros(len(words), dtype=bool), np.zeros(len(words), dtype=np.int32)
        place, begin = ends, begins
        while len(place):
            last = via.take(place)
            place = piece_starts.take(last)
            taken[place], ids[place] = True, piece_ids.take(last)
            more = np.flatnonzero(place > begin)
            place, begin = place.take(more), begin.take(more)
        self._fuse(ids, taken)
        return _spelled(ids, taken, begins)

    def _best(self, words: Bytes, begins: Places, lengths: Places) -> tuple[Places, Places, Int32Array]:
        """For each place, which piece the best way to it ends with; where those pieces begin; and their ids."""
        found = list(self._trie.matches(words, np.where(words != 0, ROOT, NOWHERE)))
        starts = np.concatenate([one.places for one in found])
        # All pieces that begin at the first letter of a word, then at the second, and so on: at each turn no two
        # end at one place, and what leads to their beginning is known.
        letters = ranges(np.zeros_like(lengths), lengths + 1).astype(np.uint8).take(starts)
        order = np.argsort(letters, kind="stable")
        turns = np.concatenate(([0], np.cumsum(np.bincount(letters))))
        starts = starts.take(order)
        ids = np.concatenate([one.numbers for one in found]).take(order)
        ends = starts + np.repeat([one.length for one in found], [len(one.places) for one in found]).take(
            order
        )
        scores = self._scores.take(ids)
        sums, via = np.full(len(words), -np.inf), np.zeros(len(words), dtype=np.int64)
        sums[begins] = 0.0
        for start, stop in pairwise(turns.tolist()):
            offered = sums.take(starts[start:stop]) + scores[start:stop]
            better = np.flatnonzero(offered > sums.take(ends[start:stop]))
            at = ends[start:stop].take(better)
            sums[at], via[at] = offered.take(better), better + start
        return via, starts, ids

    def _fuse(self, ids: Int32Array, taken: BoolArray) -> None:
        """A piece may have the id of the unknown token: the library makes one token of several in a row, which has
        the id of the piece that is written like all of them, if there is one."""
        places = np.flatnonzero(taken)
        unknown = ids.take(places) == self._unknown
        follows = unknown[1:] & unknown[:-1] & (np.diff(places) == self._unknown_length)
        taken[places[1:][follows]] = False
        for first in np.flatnonzero(follows & ~np.append(False, follows[:-1])):
            count = 2
            while follows[first + count - 1 : first + count].any():
                count += 1
            ids[places[first]] = self._unknown_runs[count]


def _written(pieces: Mapping[str, int], mark: str) -> list[tuple[bytes, int]]:
    """Those that a word of ASCII may contain."""
    written = []
    for piece, number in pieces.items():
        bare = piece.replace(mark, "") if mark else piece
        if piece and bare.isascii() and (bare.isprintable() and " " not in bare) and len(piece) <= LONGEST:
            written.append(((piece.replace(mark, chr(MARK)) if mark else piece).encode(), number))
    return written


def _copied(text: Bytes, starts: Places, lengths: Places) -> tuple[Bytes, Places, Places]:
    """The words, each with NUL behind it; where they begin, and where their NULs are."""
    words = text.take(ranges(starts, lengths + 1), mode="clip")
    ends = np.cumsum(lengths + 1) - 1
    words[ends] = 0
    return words, ends - lengths, ends


def _spelled(ids: Int32Array, taken: BoolArray, begins: Places) -> Spelled:
    """taken: at which places tokens begin."""
    places = np.flatnonzero(taken)
    counts = np.diff(np.searchsorted(places, np.append(begins, len(taken))))
    return Spelled(ids.take(places), counts)
