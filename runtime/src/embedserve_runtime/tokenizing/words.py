"""Ids of texts word by word, out of a table that the tokenizer itself has filled: most words have been seen before.

Between blanks lie words whose ids depend on nothing else, where the tokenizer says so: its normalizer changes each
character by itself or with the marks that follow it, its pre-tokenizer splits at blanks first, and no word is different
for being the first. The tokenizer is asked for one word that is not in the table, so ids are its own.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from embedserve_runtime.engines.base import Int32Array
from embedserve_runtime.tokenizing.bulk import MOST_CHARACTERS, Bulk
from embedserve_runtime.tokenizing.layout import WORD_NORMALIZERS, flat
from embedserve_runtime.tokenizing.spelling import read_surroundings, spell_by_model

# Some 200 bytes each. When so many have been met, those that are not met again among the next so many are forgotten.
MOST_WORDS = 32_768
# Longer ones come once, and one may be a whole text of a language without blanks.
LONGEST_WORD = 48
# Of texts of ASCII: from here on they are read together. Where each word is known, looking up is faster up to 14,000,
# by a third at this many; where a word in eleven is new, reading together is faster from 6,000 on.
BULK_CHARACTERS = 8_192
# Characters that never join with a neighbour: no marks, no joiners, no halves of surrogate pairs. Texts with others
# are left to the library.
_PLAIN = re.compile(
    "[\x00-\u02ff\u0370-\u0482\u048a-\u052f\u05d0-\u05ea\u1e00-\u1fff\u2010-\u2027\u2030-\u205e\u20a0-\u20bf"
    "\u2100-\u214f\u2190-\u22ff\u3000-\u3029\u3041-\u3096\u30a1-\u30fe\u4e00-\u9fff\uac00-\ud7a3\uff01-\uff9d]*"
)
_BLANKS = " \t\n\r"

_SPLIT_FIRST = {"BertPreTokenizer", "WhitespaceSplit", "Whitespace"}
_SPLIT_FURTHER = {*_SPLIT_FIRST, "Punctuation", "Digits"}


class Words:
    """Safe from several threads: at worst two of them fill in the same word."""

    def __init__(self, encode: Callable[[str], list[int]]) -> None:
        """encode: ids of one word, without special tokens."""
        self._table = _Table(encode)
        self.bulk: Bulk | None = None

    @classmethod
    def of(cls, tokenizer: Tokenizer, layout: Mapping[str, Any], *, bulk: bool) -> Words | None:
        """None for a tokenizer whose words are not known to be independent. layout: its tokenizer.json. bulk: whether
        to make ready for many texts at a time."""
        if not (words_are_independent(layout) and _blanks_stay(tokenizer)):
            return None
        around = read_surroundings(tokenizer, layout)
        if around is None:
            return cls(lambda word: tokenizer.encode(word, add_special_tokens=False).ids)
        words = cls(spell_by_model(tokenizer, layout, around))
        if bulk:
            words.bulk = Bulk.of(layout, around, words._table.__getitem__)
        return words

    def ids(self, text: str, head: bytes = b"", tail: bytes = b"") -> Int32Array | None:
        """Of the text, between `head` and `tail`, ids as int32; None where the library must read it whole."""
        if not text.isascii() and _PLAIN.fullmatch(text) is None:
            return None
        spaced = text.replace("\n", " ").replace("\t", " ").replace("\r", " ")
        table = self._table
        return np.frombuffer(
            b"".join((head, *map(table.__getitem__, spaced.split(" ")), tail)), dtype=np.int32
        )

    def ids_of(self, texts: Sequence[str], head: bytes = b"", tail: bytes = b"") -> list[Int32Array | None]:
        """`ids` of each."""
        plain = [text for text in texts if text.isascii()] if self.bulk is not None else []
        if self.bulk is None or not BULK_CHARACTERS <= sum(map(len, plain)) <= MOST_CHARACTERS:
            return [self.ids(text, head, tail) for text in texts]
        read = iter(self.bulk.ids(plain, head, tail))
        return [next(read) if text.isascii() else self.ids(text, head, tail) for text in texts]


class _Table(dict[str, bytes]):
    """Ids by word, int32: of the words met last. Those met before them are kept aside, and come back when met."""

    def __init__(self, encode: Callable[[str], list[int]]) -> None:
        super().__init__()
        self._encode = encode
        self._aside: dict[str, bytes] = {}

    def __missing__(self, word: str) -> bytes:
        ids = self._aside.get(word)
        if ids is None:
            ids = array("i", self._encode(word) if word else ()).tobytes()
        if len(word) <= LONGEST_WORD:
            if len(self) >= MOST_WORDS:
                self._aside = dict(self)
                self.clear()
            self[word] = ids
        return ids


def words_are_independent(layout: Mapping[str, Any]) -> bool:
    """Whether a text of plain characters has the ids of its words, one after the other. layout: tokenizer.json."""
    if layout["model"].get("dropout"):
        return False
    # The white space beside such a token goes with it, which splits nothing else; inside of it, it would.
    if any(re.search(r"\s", token["content"]) for token in layout["added_tokens"]):
        return False
    if not all(_is_local(step) for step in flat(layout["normalizer"], "normalizers")):
        return False
    steps = flat(layout["pre_tokenizer"], "pretokenizers")
    return bool(steps) and steps[0]["type"] in _SPLIT_FIRST and all(map(_ignores_place, steps[1:]))


def _is_local(step: Mapping[str, Any]) -> bool:
    if step["type"] != "Replace":
        return step["type"] in WORD_NORMALIZERS
    match step["pattern"]:
        case {"String": str(text)}:
            return not re.search(r"\s", text)
        case {"Regex": " {2,}" | r"\s+"}:
            return bool(step["content"] == " ")
        case _:
            return False


def _ignores_place(step: Mapping[str, Any]) -> bool:
    if step["type"] == "Metaspace":
        return step["prepend_scheme"] in {"always", "never"}
    return step["type"] in _SPLIT_FURTHER


def _blanks_stay(tokenizer: Tokenizer) -> bool:
    """Whether the normalizer leaves white space where a blank is: a table of characters may say otherwise."""
    normalizer = tokenizer.normalizer
    return normalizer is None or all(
        re.fullmatch(r"\S+\s+\S+", normalizer.normalize_str(f"a{blank}a")) for blank in _BLANKS
    )
