"""Tokenizes texts word by word with a cache of words: most words have been seen before.

This is for tokenizers in which the ids of a word between blanks depend on nothing else: the normalizer changes each
character by itself or with the marks that follow it, the pre-tokenizer splits at blanks first, and the first word is
not treated differently. Words that are not in the cache are tokenized by the tokenizer itself.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from embedserve_runtime.forward.arrays import Int32Array
from embedserve_runtime.forward.batch import FlatTokens
from embedserve_runtime.model.vocabulary import flatten_steps
from embedserve_runtime.tokenizing.pre_tokenizer import (
    INDEPENDENT_CHARACTER,
    build_word_encoder,
    read_pre_tokenizer_settings,
)
from embedserve_runtime.tokenizing.tokenizer_json import WORD_NORMALIZERS

# Some 200 bytes each. Words that do not come again among as many others are forgotten.
MAX_WORDS = 32_768
# Longer words come once; one may be a whole text in a language without blanks.
MAX_WORD_LENGTH = 48
# From this number of texts on, one array for all takes less time than an array for each, which is faster to hand on.
MIN_FLAT_TEXTS = 8
_ID_BYTES = np.dtype(np.int32).itemsize
_INDEPENDENT_TEXT = re.compile(f"{INDEPENDENT_CHARACTER.pattern}*")
_BLANKS = " \t\n\r"

_SPLIT_FIRST = {"BertPreTokenizer", "WhitespaceSplit", "Whitespace"}
_SPLIT_FURTHER = {*_SPLIT_FIRST, "Punctuation", "Digits"}


class WordTokenizer:
    """Tokenizes texts word by word. Thread-safe: at worst two threads tokenize the same word.

    encode: gives the ids of one word, without special tokens.
    """

    def __init__(self, encode: Callable[[str], list[int]]) -> None:
        self._cache = _WordCache(encode)

    @classmethod
    def build(cls, tokenizer: Tokenizer, tokenizer_json: Mapping[str, Any]) -> WordTokenizer | None:
        """Build one for a tokenizer; None where its words may depend on each other. tokenizer_json: the content of that
        file."""
        if not (are_words_independent(tokenizer_json) and _keeps_blanks(tokenizer)):
            return None
        settings = read_pre_tokenizer_settings(tokenizer, tokenizer_json)
        if settings is None:
            return cls(lambda word: tokenizer.encode(word, add_special_tokens=False).ids)
        return cls(build_word_encoder(tokenizer, tokenizer_json, settings))

    def encode(self, text: str, head: bytes = b"", tail: bytes = b"") -> Int32Array | None:
        """Return the ids of a text between `head` and `tail`, int32; None where the library must read it whole."""
        ids = self._look_up(text, head, tail)
        return None if ids is None else np.frombuffer(ids, dtype=np.int32)

    def encode_all(self, texts: Sequence[str], head: bytes, tail: bytes) -> Sequence[Int32Array | None]:
        """Encode each text as `encode` does. Gives FlatTokens for MIN_FLAT_TEXTS and more, if the library need read
        none of them."""
        looked_up = [self._look_up(text, head, tail) for text in texts]
        if len(looked_up) < MIN_FLAT_TEXTS or None in looked_up:
            return [None if ids is None else np.frombuffer(ids, dtype=np.int32) for ids in looked_up]
        read = [ids for ids in looked_up if ids is not None]
        lengths = np.fromiter(map(len, read), dtype=np.int32, count=len(read)) // _ID_BYTES
        # A bytearray, since engines get arrays that can be written: torch warns of others.
        return FlatTokens.build(np.frombuffer(bytearray().join(read), dtype=np.int32), lengths)

    def _look_up(self, text: str, head: bytes, tail: bytes) -> bytes | None:
        if not text.isascii() and _INDEPENDENT_TEXT.fullmatch(text) is None:
            return None
        spaced = text.replace("\n", " ").replace("\t", " ").replace("\r", " ")
        return b"".join((head, *map(self._cache.__getitem__, spaced.split(" ")), tail))


class _WordCache(dict[str, bytes]):
    """Caches the ids of recent words, int32. The generation before is kept too, and its words come back when they are
    used."""

    def __init__(self, encode: Callable[[str], list[int]]) -> None:
        super().__init__()
        self._encode = encode
        self._previous: dict[str, bytes] = {}

    def __missing__(self, word: str) -> bytes:
        ids = self._previous.get(word)
        if ids is None:
            ids = array("i", self._encode(word) if word else ()).tobytes()
        if len(word) <= MAX_WORD_LENGTH:
            if len(self) >= MAX_WORDS:
                self._previous = dict(self)
                self.clear()
            self[word] = ids
        return ids


def are_words_independent(tokenizer_json: Mapping[str, Any]) -> bool:
    """Return whether the ids of a text are those of its words, one after another. tokenizer_json: the content of that
    file."""
    if tokenizer_json["model"].get("dropout"):
        return False
    # White space next to an added token goes with it, which splits nothing else; white space inside it would.
    if any(re.search(r"\s", token["content"]) for token in tokenizer_json["added_tokens"]):
        return False
    if not all(_is_context_free(step) for step in flatten_steps(tokenizer_json["normalizer"], "normalizers")):
        return False
    steps = flatten_steps(tokenizer_json["pre_tokenizer"], "pretokenizers")
    return bool(steps) and steps[0]["type"] in _SPLIT_FIRST and all(map(_is_position_independent, steps[1:]))


def _is_context_free(step: Mapping[str, Any]) -> bool:
    if step["type"] != "Replace":
        return step["type"] in WORD_NORMALIZERS
    match step["pattern"]:
        case {"String": str(text)}:
            return not re.search(r"\s", text)
        case {"Regex": " {2,}" | r"\s+"}:
            return bool(step["content"] == " ")
        case _:
            return False


def _is_position_independent(step: Mapping[str, Any]) -> bool:
    if step["type"] == "Metaspace":
        return step["prepend_scheme"] in {"always", "never"}
    return step["type"] in _SPLIT_FURTHER


def _keeps_blanks(tokenizer: Tokenizer) -> bool:
    """Return whether the normalizer keeps white space where a blank is; its table of characters may not."""
    normalizer = tokenizer.normalizer
    return normalizer is None or all(
        re.fullmatch(r"\S+\s+\S+", normalizer.normalize_str(f"a{blank}a")) for blank in _BLANKS
    )
