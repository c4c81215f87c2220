"""Tokenizes texts word by word with a cache of words: most words have been seen before.

This is for tokenizers in which the ids of a word between blanks depend on nothing else: the normalizer changes each
character by itself or with the marks that follow it, the pre-tokenizer splits at blanks first, and the first word is
not treated differently. Words that are not in the cache are tokenized by the tokenizer itself.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import Tokenizer

from embedserve_runtime.engines.base import Int32Array
from embedserve_runtime.tokenizing.pre_tokenizer import (
    INDEPENDENT_CHARACTER,
    build_word_encoder,
    read_pre_tokenizer_settings,
)
from embedserve_runtime.tokenizing.tokenizer_json import WORD_NORMALIZERS, flatten_steps

if TYPE_CHECKING:
    from embedserve_runtime.tokenizing.compiled_tokenizer import CompiledTokenizer

# Some 200 bytes each. Words that do not come again among the next so many are forgotten.
MAX_WORDS = 32_768
# Longer words come once; one may be a whole text in a language without blanks.
MAX_WORD_LENGTH = 48
_INDEPENDENT_TEXT = re.compile(f"{INDEPENDENT_CHARACTER.pattern}*")
_BLANKS = " \t\n\r"

_SPLIT_FIRST = {"BertPreTokenizer", "WhitespaceSplit", "Whitespace"}
_SPLIT_FURTHER = {*_SPLIT_FIRST, "Punctuation", "Digits"}


class WordTokenizer:
    """Tokenizes texts word by word. Thread-safe: at worst two threads tokenize the same word."""

    def __init__(self, encode: Callable[[str], list[int]], compiled: CompiledTokenizer | None = None) -> None:
        """encode: gives the ids of one word, without special tokens. compiled: tokenizes texts first, where it can."""
        self._table = _WordCache(encode)
        self.compiled = compiled

    @classmethod
    def build(
        cls, tokenizer: Tokenizer, tokenizer_json: Mapping[str, Any], *, compiled: bool
    ) -> WordTokenizer | None:
        """Build one for a tokenizer; None where its words may depend on each other. tokenizer_json: the content of that
        file. compiled: whether to compile a tokenizer, which takes memory and a longer start."""
        if not (are_words_independent(tokenizer_json) and _keeps_blanks(tokenizer)):
            return None
        settings = read_pre_tokenizer_settings(tokenizer, tokenizer_json)
        if settings is None:
            return cls(lambda word: tokenizer.encode(word, add_special_tokens=False).ids)
        encode_word = build_word_encoder(tokenizer, tokenizer_json, settings)
        if not compiled:
            return cls(encode_word)
        from embedserve_runtime.tokenizing.compiled_tokenizer import CompiledTokenizer

        return cls(encode_word, CompiledTokenizer.build(tokenizer, tokenizer_json, settings))

    def encode(self, text: str, head: bytes = b"", tail: bytes = b"") -> Int32Array | None:
        """Return the ids of a text between `head` and `tail`; None where the library must read it whole."""
        if self.compiled is not None:
            return self.encode_all([text], head, tail)[0]
        return self._look_up(text, head, tail)

    def encode_all(
        self, texts: Sequence[str], head: bytes = b"", tail: bytes = b""
    ) -> Sequence[Int32Array | None]:
        """Encode each text; FlatTokens where all were read together."""
        if self.compiled is None or not texts:
            return [self._look_up(text, head, tail) for text in texts]
        read, unread = self.compiled.read(texts, head, tail)
        if unread is None:
            return read
        return [
            self._look_up(text, head, tail) if left_out else ids
            for text, ids, left_out in zip(texts, read, unread.tolist(), strict=True)
        ]

    def _look_up(self, text: str, head: bytes, tail: bytes) -> Int32Array | None:
        if not text.isascii() and _INDEPENDENT_TEXT.fullmatch(text) is None:
            return None
        spaced = text.replace("\n", " ").replace("\t", " ").replace("\r", " ")
        table = self._table
        return np.frombuffer(
            b"".join((head, *map(table.__getitem__, spaced.split(" ")), tail)), dtype=np.int32
        )


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
    """Whether the ids of a text are those of its words, one after another. tokenizer_json: the content of that file."""
    if tokenizer_json["model"].get("dropout"):
        return False
    # White space beside an added token goes with it, which splits nothing else; white space inside it would.
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
    """Whether the normalizer keeps white space where a blank is; its table of characters may not."""
    normalizer = tokenizer.normalizer
    return normalizer is None or all(
        re.fullmatch(r"\S+\s+\S+", normalizer.normalize_str(f"a{blank}a")) for blank in _BLANKS
    )
