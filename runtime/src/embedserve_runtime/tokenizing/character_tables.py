"""Builds tables of what a tokenizer does to each character, for `loops.tokenization`, by asking the library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer

from embedserve_runtime.engines.base import Int32Array
from embedserve_runtime.loops.tokenization import (
    BLANK,
    CHARACTER,
    LETTER,
    MANY,
    NAMED,
    NOTHING,
    ODD,
    PLANE,
    RUN,
    SIGN,
)
from embedserve_runtime.loops.tries import Bytes
from embedserve_runtime.tokenizing.pre_tokenizer import INDEPENDENT_CHARACTER, PreTokenizerSettings, WordSplit

_ASCII = 0x80


class CharacterTables(NamedTuple):
    """The character tables of a tokenizer, with the shapes and meaning that `loops.tokenization.read` gives them."""

    bytes: Bytes
    starts: Int32Array
    normalized: Bytes
    names: Bytes
    name_starts: Int32Array


def build_character_tables(
    tokenizer: Tokenizer, tokenizer_json: Mapping[str, Any], settings: PreTokenizerSettings
) -> CharacterTables:
    """Build the tables of a tokenizer. tokenizer_json: the content of that file.

    A character is of class ODD if it may join with another, if it may be part of an added token once it is normalized,
    or if it would be taken for the mark.
    """
    plain = INDEPENDENT_CHARACTER.findall("".join(map(chr, range(PLANE))))
    raw, normal = _list_added_tokens(tokenizer, tokenizer_json)
    hidden = frozenset("".join(normal))
    known: list[str | None] = [None] * PLANE
    for character, normalized in zip(plain, _normalize_characters(tokenizer, plain), strict=True):
        # Added tokens that are searched in normalized texts are found in ASCII texts as they are written.
        hides = bool(normal) and (
            not normalized or (not character.isascii() and not hidden.isdisjoint(normalized.lower()))
        )
        if not (hides or (settings.mark and settings.mark in normalized)):
            known[ord(character)] = normalized
    starts = _start_offsets(["\0" if one is None else one for one in known])
    rows = _build_character_rows("".join(["\0" if one is None else one for one in known]), settings.split)
    rows[starts[[code for code, one in enumerate(known) if one is None]], 0] = ODD
    names = [_lower_ascii(name) for name in sorted({*raw, *normal})]
    return CharacterTables(
        _build_byte_table(rows, starts, {byte for name in names for byte in (name[0], name[:1].upper()[0])}),
        starts,
        rows,
        np.frombuffer(b"".join(names), dtype=np.uint8),
        _start_offsets(names),
    )


def _normalize_characters(tokenizer: Tokenizer, characters: Sequence[str]) -> list[str]:
    """Normalize each character, between two letters that the normalizer does not change."""
    normalizer = tokenizer.normalizer
    if normalizer is None:
        return list(characters)
    return [normalizer.normalize_str(f"a{character}a")[1:-1] for character in characters]


def _build_character_rows(characters: str, split: WordSplit) -> Bytes:
    """Build the rows of normalized characters: uint8, shape (characters, CHARACTER).

    The class of a character follows from what the pre-tokenizer does to it between two letters: all become one word,
    the character is dropped, or it becomes a word, alone or with others like it.
    """
    different, which = np.unique(
        np.frombuffer(characters.encode("utf-32-le"), dtype=np.uint32), return_inverse=True
    )
    known = [chr(code) for code in different.tolist()]
    text = " ".join([f"a{character}a" for character in known])
    begins = [start for _, (start, _) in split.pre_tokenizer.pre_tokenize_str(text)]
    words = np.bincount(np.array(begins) // len("aaa "), minlength=len(known))
    alone = SIGN if split is WordSplit.LETTERS_AND_SIGNS else RUN
    rows = np.zeros((len(known), CHARACTER), dtype=np.uint8)
    rows[:, 0] = np.array([ODD, LETTER, BLANK, alone])[words]
    written = [character.encode() for character in known]
    rows[:, 1] = [len(letters) for letters in written]
    padded = b"".join([letters.ljust(CHARACTER - 2, b"\0") for letters in written])
    rows[:, 2:] = np.frombuffer(padded, dtype=np.uint8).reshape(-1, CHARACTER - 2)
    return rows[which]


def _list_added_tokens(tokenizer: Tokenizer, tokenizer_json: Mapping[str, Any]) -> tuple[set[str], set[str]]:
    """Return the added tokens that are searched in raw texts, and those that are searched in normalized texts, in lower
    case."""
    raw, normal = set(), set()
    for token in tokenizer_json["added_tokens"]:
        raw.add(token["content"])
        if token["normalized"]:
            normalizer = tokenizer.normalizer
            content = token["content"]
            normal.add((normalizer.normalize_str(content) if normalizer else content).lower())
    return raw, normal


def _lower_ascii(name: str) -> bytes:
    """Encode a name, with its ASCII letters in lower case."""
    return name.encode().lower()


def _start_offsets(parts: Sequence[Sequence[object]]) -> Int32Array:
    starts = np.zeros(len(parts) + 1, dtype=np.int32)
    np.cumsum([len(part) for part in parts], out=starts[1:])
    return starts


def _build_byte_table(rows: Bytes, starts: Int32Array, firsts: set[int]) -> Bytes:
    """Build the table of single bytes. firsts: bytes with which the name of an added token begins."""
    found = np.full((2, 256), MANY, dtype=np.uint8)
    for byte in range(_ASCII):
        match rows[starts[byte] : starts[byte + 1]].tolist():
            case []:
                found[:, byte] = NOTHING, 0
            case [[class_, 1, letter, *_]]:
                found[:, byte] = class_, letter
            case _:
                found[:, byte] = ODD, 0
    found[0, sorted(firsts)] += NAMED
    return found
