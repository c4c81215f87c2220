"""Which words were met before: a table of numpy arrays, asked for many words at a time.

A key is all bytes of a word, so no two words are taken for each other.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embedserve_runtime.engines.base import BoolArray
from embedserve_runtime.tokenizing.tries import Bytes, Places

# When so many words have been met, the memory is emptied: finding out what one is again takes a microsecond.
MOST_WORDS = 32_768
# Bytes of a key: four numbers of eight.
LONGEST = 32
# Slots. A call may bring as many new words as there are slots beyond MOST_WORDS.
_BITS = 17
MOST_NEW = (1 << _BITS) // 2
_PARTS = LONGEST // 8

_MASKS = np.array([(1 << 8 * n) - 1 for n in range(9)], dtype=np.uint64)
_MASKS = np.stack([_MASKS[np.clip(np.arange(LONGEST + 1) - 8 * part, 0, 8)] for part in range(_PARTS)])

Keys = list[NDArray[np.uint64]]


class Met(NamedTuple):
    """slots: of each word. fresh: places of those that were not met before, each different one once."""

    slots: Places
    fresh: Places


class Memory:
    """Numbers for words, which the caller may use as places in arrays of `size`. For one thread at a time."""

    size = 1 << _BITS

    def __init__(self) -> None:
        self._keys: Keys = [np.zeros(self.size, dtype=np.uint64) for _ in range(_PARTS)]
        self._owners = np.zeros(self.size, dtype=np.int64)
        # Drawn anew each time, lest a client find words that all want one slot.
        self._factors = tuple(
            np.random.default_rng().integers(0, 1 << 63, _PARTS + 1, dtype=np.uint64) * 2 + 1
        )
        self._words = 0

    @property
    def full(self) -> bool:
        return self._words >= MOST_WORDS

    def meet(self, keys: Keys) -> Met:
        """At most MOST_NEW words, of at least one byte, by `keys_of`."""
        slots = self._hashes(keys)
        known, _ = self._state(slots, keys)
        left, fresh = np.flatnonzero(~known), [np.zeros(0, dtype=np.int64)]
        while len(left):
            mine = [part.take(left) for part in keys]
            at = slots.take(left)
            known, free = self._state(at, mine)
            wants = np.flatnonzero(free)
            # Of several that want one slot the last one written gets it; those that are the same word find it there.
            self._owners[at[wants]] = left[wants]
            gets = wants[self._owners[at[wants]] == left[wants]]
            for part, of_mine in zip(self._keys, mine, strict=True):
                part[at[gets]] = of_mine[gets]
            fresh.append(left[gets])
            on = np.flatnonzero(~self._state(at, mine)[0])
            left = left.take(on)
            slots[left] = (at.take(on) + 1) & (self.size - 1)
        new = np.concatenate(fresh)
        self._words += len(new)
        return Met(slots, new)

    def _hashes(self, keys: Keys) -> Places:
        *factors, last = self._factors
        mixed = keys[0] * factors[0]
        for key, factor in zip(keys[1:], factors[1:], strict=True):
            mixed ^= key * factor
        mixed ^= mixed >> np.uint64(32)
        mixed *= last
        mixed >>= np.uint64(64 - _BITS)
        slots: Places = mixed.astype(np.int64)
        return slots

    def _state(self, slots: Places, keys: Keys) -> tuple[BoolArray, BoolArray]:
        """Which slots hold their key, and which are free."""
        first = self._keys[0].take(slots)
        same = first == keys[0]
        for part, wanted in zip(self._keys[1:], keys[1:], strict=True):
            same &= part.take(slots) == wanted
        return same, first == 0


def keys_of(text: Bytes, starts: Places, lengths: Places) -> Keys:
    """text: uint8, contiguous, with LONGEST bytes behind its last word. lengths: at most LONGEST."""
    numbers = np.ndarray((len(text) - 7,), dtype="<u8", buffer=text, strides=(1,))
    return [numbers.take(starts + 8 * part) & _MASKS[part].take(lengths) for part in range(_PARTS)]
