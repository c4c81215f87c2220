"""Ids of texts word by word, out of a table that the tokenizer itself has filled: most words have been seen before.

Between blanks lie words whose ids depend on nothing else, where the tokenizer says so: its normalizer changes each
character by itself or with the marks that follow it, its pre-tokenizer splits at blanks first, and no word is different
for being the first. The tokenizer is asked for one word that is not in the table, so ids are its own.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import Tokenizer

from embedserve_runtime.engines.base import Int32Array
from embedserve_runtime.tokenizing.layout import WORD_NORMALIZERS, flat
from embedserve_runtime.tokenizing.pre_tokenizer import PLAIN, build_word_encoder, read_pre_tokenizer_settings

if TYPE_CHECKING:
    from embedserve_runtime.tokenizing.compiled import CompiledTokenizer

# Some 200 bytes each. When so many have been met, those that are not met again among the next so many are forgotten.
MAX_WORDS = 32_768
# Longer ones come once, and one may be a whole text of a language without blanks.
MAX_WORD_LENGTH = 48
_PLAIN = re.compile(f"{PLAIN.pattern}*")
_BLANKS = " \t\n\r"

_SPLIT_FIRST = {"BertPreTokenizer", "WhitespaceSplit", "Whitespace"}
_SPLIT_FURTHER = {*_SPLIT_FIRST, "Punctuation", "Digits"}


class WordTokenizer:
    """Looks texts up word by word. Safe from several threads: at worst two of them fill in the same word."""

    def __init__(self, encode: Callable[[str], list[int]], compiled: CompiledTokenizer | None = None) -> None:
        """encode: ids of one word, without special tokens. compiled: reads texts first, where it can."""
        self._table = _WordCache(encode)
        self.compiled = compiled

    @classmethod
    def build(
        cls, tokenizer: Tokenizer, layout: Mapping[str, Any], *, compiled: bool
    ) -> WordTokenizer | None:
        """Build one from tokenizer.json; None where words are not known to be independent. layout: its tokenizer.json.
        compiled: whether texts shall be read by compiled loops, which take memory and a longer start."""
        if not (words_are_independent(layout) and _blanks_stay(tokenizer)):
            return None
        settings = read_pre_tokenizer_settings(tokenizer, layout)
        if settings is None:
            return cls(lambda word: tokenizer.encode(word, add_special_tokens=False).ids)
        encode_word = build_word_encoder(tokenizer, layout, settings)
        if not compiled:
            return cls(encode_word)
        from embedserve_runtime.tokenizing.compiled import CompiledTokenizer

        return cls(encode_word, CompiledTokenizer.build(tokenizer, layout, settings))

    def ids(self, text: str, head: bytes = b"", tail: bytes = b"") -> Int32Array | None:
        """Return the ids of a text between `head` and `tail`; None where the library must read it whole."""
        if self.compiled is not None:
            return self.ids_of_all([text], head, tail)[0]
        return self._look_up(text, head, tail)

    def ids_of_all(
        self, texts: Sequence[str], head: bytes = b"", tail: bytes = b""
    ) -> Sequence[Int32Array | None]:
        """Return the `ids` of each text, as FlatTokens where all were read together."""
        if self.compiled is None or not texts:
            return [self._look_up(text, head, tail) for text in texts]
        read, odd = self.compiled.read(texts, head, tail)
        if odd is None:
            return read
        return [
            self._look_up(text, head, tail) if left_out else ids
            for text, ids, left_out in zip(texts, read, odd.tolist(), strict=True)
        ]

    def _look_up(self, text: str, head: bytes, tail: bytes) -> Int32Array | None:
        if not text.isascii() and _PLAIN.fullmatch(text) is None:
            return None
        spaced = text.replace("\n", " ").replace("\t", " ").replace("\r", " ")
        table = self._table
        return np.frombuffer(
            b"".join((head, *map(table.__getitem__, spaced.split(" ")), tail)), dtype=np.int32
        )


class _WordCache(dict[str, bytes]):
    """Ids by word, int32: of the words met last. Those met before them are kept aside, and come back when met."""

    def __init__(self, encode: Callable[[str], list[int]]) -> None:
        super().__init__()
        self._encode = encode
        self._aside: dict[str, bytes] = {}

    def __missing__(self, word: str) -> bytes:
        ids = self._aside.get(word)
        if ids is None:
            ids = array("i", self._encode(word) if word else ()).tobytes()
        if len(word) <= MAX_WORD_LENGTH:
            if len(self) >= MAX_WORDS:
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
