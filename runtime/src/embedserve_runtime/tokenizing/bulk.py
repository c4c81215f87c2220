"""Ids of many texts of ASCII at a time, by array operations over all their bytes: no step is taken for each word.

The bytes are classed, runs of one class are words of the model, and words that were met before have their pieces in a
pool. The others are spelled together. What this cannot know, a word with control characters or one in which an added
token may stand, is asked of the library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from embedserve_runtime.engines.base import BoolArray, Int32Array
from embedserve_runtime.tokenizing.memory import LONGEST, MOST_NEW, Memory, keys_of
from embedserve_runtime.tokenizing.spellers import MARK, Speller, speller_of
from embedserve_runtime.tokenizing.spelling import Split, Surroundings
from embedserve_runtime.tokenizing.tries import Bytes, Places, ranges

# Characters of all texts of a call, which then has no more new words than the memory takes.
MOST_CHARACTERS = MOST_NEW
# More names of added tokens are not looked for.
_MOST_NAMES = 64

# Classes of bytes. Each SIGN is a word, of the others a run. ODD: a word between blanks that the library is asked for.
_BLANK, _LETTER, _SIGN, _RUN, _ODD = range(5)
_UNKNOWN = 0xFF


class Bulk:
    """Safe from several threads, of which one at a time is served."""

    def __init__(self, speller: Speller, around: Surroundings, ask: Callable[[str], bytes]) -> None:
        """ask: ids of a word between blanks, without special tokens, int32."""
        self._speller = speller
        self._marked = bool(around.mark)
        self._letters = _letters(speller, lower=around.lower)
        self._classes = _classes(around.split)
        self._names = [name.encode() for name in around.added if name.isascii()]
        self._ask = ask
        self._lock = Lock()
        self._forget()

    @classmethod
    def of(cls, layout: Mapping[str, Any], around: Surroundings, ask: Callable[[str], bytes]) -> Bulk | None:
        """None for models that are not known here. layout: tokenizer.json."""
        speller = speller_of(layout["model"], around.mark)
        if speller is None or len(around.added) > _MOST_NAMES:
            return None
        return cls(speller, around, ask)

    def ids(self, texts: Sequence[str], head: bytes, tail: bytes) -> list[Int32Array]:
        """Of each text, between `head` and `tail`, ids as int32. texts: of ASCII, together of MOST_CHARACTERS
        characters at most."""
        units = self._units("\n".join(texts).encode())
        with self._lock:
            try:
                starts, counts, pool = self._spelled(units)
            except BaseException:
                self._forget()  # words may have been noted of which no ids are there
                raise
        ids = pool.take(ranges(starts, counts), mode="clip")
        begins = np.cumsum([1, *(len(text) + 1 for text in texts)])
        bounds = np.append(0, np.cumsum(counts)).take(np.searchsorted(units.places, begins))
        own = [ids[start:stop] for start, stop in pairwise(bounds.tolist())]
        if not (head or tail):
            return own
        return [np.frombuffer(b"".join((head, one.tobytes(), tail)), dtype=np.int32) for one in own]

    def _forget(self) -> None:
        self._memory = Memory()
        self._starts, self._counts = (np.zeros(Memory.size, dtype=np.int64) for _ in range(2))
        self._pool = np.zeros(0, dtype=np.int32)

    def _units(self, data: bytes) -> _Units:
        text = np.zeros(1 + len(data) + 1 + LONGEST, dtype=np.uint8)
        text[0] = MARK
        self._letters.take(np.frombuffer(data, dtype=np.uint8), out=text[1 : len(data) + 1], mode="clip")
        classes = self._classes.take(text, mode="clip")
        _set_aside(classes, self._suspicious(data))
        change, sign, filled = classes[1:] != classes[:-1], classes == _SIGN, classes != _BLANK
        places = np.flatnonzero((change | sign[1:]) & filled[1:]) + 1
        lengths = np.flatnonzero((change | sign[:-1]) & filled[:-1]) + 1 - places
        odd = classes.take(places, mode="clip") == _ODD
        if self._marked:
            return _Units(data, text, places, lengths, odd, places - 1, lengths + 1)
        return _Units(data, text, places, lengths, odd, places, lengths)

    def _suspicious(self, data: bytes) -> list[int]:
        """Where, in `data` with a byte before it, an added token may stand."""
        small = data.lower()
        places = []
        for name in self._names:
            place = small.find(name)
            while place >= 0:
                places.append(place + 1)
                place = small.find(name, place + 1)
        return places

    def _spelled(self, units: _Units) -> tuple[Places, Places, Int32Array]:
        """Where the ids of each unit begin in the pool, how many there are, and the pool."""
        if self._memory.full:
            self._forget()
        asked = units.odd | (units.lengths > self._speller.longest)
        kept, others = np.flatnonzero(~asked), np.flatnonzero(asked)
        met = self._memory.meet(keys_of(units.text, units.starts.take(kept), units.lengths.take(kept)))
        if len(met.fresh):
            new, slots = kept.take(met.fresh), met.slots.take(met.fresh)
            spelled = self._speller.spell(units.text, units.starts.take(new), units.lengths.take(new))
            self._counts[slots] = spelled.counts
            self._starts[slots] = len(self._pool) + np.cumsum(spelled.counts) - spelled.counts
            self._pool = np.concatenate((self._pool, spelled.ids))
        starts, counts = (np.zeros(len(asked), dtype=np.int64) for _ in range(2))
        starts[kept], counts[kept] = self._starts.take(met.slots), self._counts.take(met.slots)
        if not len(others):
            return starts, counts, self._pool
        answers = [self._ask(units.written(unit)) for unit in others.tolist()]
        counts[others] = [len(ids) // self._pool.itemsize for ids in answers]
        starts[others] = len(self._pool) + np.cumsum(counts[others]) - counts[others]
        return starts, counts, np.concatenate((self._pool, np.frombuffer(b"".join(answers), dtype=np.int32)))


class _Units(NamedTuple):
    """What gets ids by itself: words of the model, and words between blanks that are odd.

    data: the texts. text: the same bytes as the model sees them, one byte later, and blanks behind them.
    places, extents: where units are in `text`; starts, lengths: with the mark that stands before each.
    """

    data: bytes
    text: Bytes
    places: Places
    extents: Places
    odd: BoolArray
    starts: Places
    lengths: Places

    def written(self, unit: int) -> str:
        start = int(self.places[unit]) - 1
        return self.data[start : start + int(self.extents[unit])].decode()


def _letters(speller: Speller, *, lower: bool) -> Bytes:
    """What the model sees of each byte; _UNKNOWN for those that it is not asked for."""
    letters = np.full(256, _UNKNOWN, dtype=np.uint8)
    for byte in range(0x21, 0x7F):
        seen = ord(chr(byte).lower()) if lower else byte
        if seen in speller.letters:
            letters[byte] = seen
    letters[list(b" \t\n\r")] = MARK
    return letters


def _classes(split: Split) -> Bytes:
    """Of what the model sees."""
    classes = np.zeros(256, dtype=np.uint8)
    classes[_UNKNOWN] = _ODD
    for byte in range(0x21, 0x7F):
        letter = len(split.value.findall(chr(byte) + "a")) == 1
        classes[byte] = _LETTER if letter else _SIGN if split is Split.LETTERS_AND_SIGNS else _RUN
    return classes


def _set_aside(classes: Bytes, places: Sequence[int]) -> None:
    """Make all of each word between blanks ODD that is so in part, or in which one of `places` lies."""
    odd = np.concatenate((np.flatnonzero(classes == _ODD), np.array(places, dtype=np.int64)))
    if len(odd):
        blanks = np.flatnonzero(classes == _BLANK)
        following = np.unique(np.searchsorted(blanks, odd))
        starts = blanks.take(following - 1) + 1
        classes[ranges(starts, blanks.take(following) - starts)] = _ODD
