"""What a tokenizer makes of each character, as tables for `loops.reading`: the library is asked for every one."""

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
from embedserve_runtime.tokenizing.pre_tokenizer import PLAIN, PreTokenizerSettings, Split

_ASCII = 0x80


class Characters(NamedTuple):
    """Shapes and meaning as `loops.reading.read` has them."""

    bytes: Bytes
    starts: Int32Array
    normalized: Bytes
    names: Bytes
    name_starts: Int32Array


def read_characters(
    tokenizer: Tokenizer, layout: Mapping[str, Any], settings: PreTokenizerSettings
) -> Characters:
    """layout: tokenizer.json. A character is ODD that may join with another, that may be part of an added token once it
    is normalized, or that would be taken for the mark."""
    plain = PLAIN.findall("".join(map(chr, range(PLANE))))
    raw, normal = _names(tokenizer, layout)
    hidden = frozenset("".join(normal))
    made: list[str | None] = [None] * PLANE
    for character, normalized in zip(plain, _normalize_characters(tokenizer, plain), strict=True):
        # Added tokens that are looked for in normalized texts are found in texts of ASCII as they are written.
        hides = bool(normal) and (
            not normalized or (not character.isascii() and not hidden.isdisjoint(normalized.lower()))
        )
        if not (hides or (settings.mark and settings.mark in normalized)):
            made[ord(character)] = normalized
    starts = _starts(["\0" if one is None else one for one in made])
    rows = _rows("".join(["\0" if one is None else one for one in made]), settings.split)
    rows[starts[[code for code, one in enumerate(made) if one is None]], 0] = ODD
    names = [_small(name) for name in sorted({*raw, *normal})]
    return Characters(
        _of_bytes(rows, starts, {byte for name in names for byte in (name[0], name[:1].upper()[0])}),
        starts,
        rows,
        np.frombuffer(b"".join(names), dtype=np.uint8),
        _starts(names),
    )


def _normalize_characters(tokenizer: Tokenizer, characters: Sequence[str]) -> list[str]:
    """What the normalizer makes of each, between two letters that it leaves as they are."""
    normalizer = tokenizer.normalizer
    if normalizer is None:
        return list(characters)
    return [normalizer.normalize_str(f"a{character}a")[1:-1] for character in characters]


def _rows(characters: str, split: Split) -> Bytes:
    """uint8, shape (characters, CHARACTER). What the pre-tokenizer does to a character between two letters: it lets
    them be one word, takes it away, or makes it a word, alone or with others like it."""
    different, which = np.unique(
        np.frombuffer(characters.encode("utf-32-le"), dtype=np.uint32), return_inverse=True
    )
    known = [chr(code) for code in different.tolist()]
    text = " ".join([f"a{character}a" for character in known])
    begins = [start for _, (start, _) in split.pre_tokenizer.pre_tokenize_str(text)]
    words = np.bincount(np.array(begins) // len("aaa "), minlength=len(known))
    alone = SIGN if split is Split.LETTERS_AND_SIGNS else RUN
    rows = np.zeros((len(known), CHARACTER), dtype=np.uint8)
    rows[:, 0] = np.array([ODD, LETTER, BLANK, alone])[words]
    written = [character.encode() for character in known]
    rows[:, 1] = [len(letters) for letters in written]
    padded = b"".join([letters.ljust(CHARACTER - 2, b"\0") for letters in written])
    rows[:, 2:] = np.frombuffer(padded, dtype=np.uint8).reshape(-1, CHARACTER - 2)
    return rows[which]


def _names(tokenizer: Tokenizer, layout: Mapping[str, Any]) -> tuple[set[str], set[str]]:
    """Added tokens that are looked for in texts as they are, and those that are in normalized texts; these in small
    letters."""
    raw, normal = set(), set()
    for token in layout["added_tokens"]:
        raw.add(token["content"])
        if token["normalized"]:
            normalizer = tokenizer.normalizer
            content = token["content"]
            normal.add((normalizer.normalize_str(content) if normalizer else content).lower())
    return raw, normal


def _small(name: str) -> bytes:
    """Letters of ASCII only."""
    return name.encode().lower()


def _starts(parts: Sequence[Sequence[object]]) -> Int32Array:
    starts = np.zeros(len(parts) + 1, dtype=np.int32)
    np.cumsum([len(part) for part in parts], out=starts[1:])
    return starts


def _of_bytes(rows: Bytes, starts: Int32Array, firsts: set[int]) -> Bytes:
    """firsts: bytes with which a name begins."""
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
