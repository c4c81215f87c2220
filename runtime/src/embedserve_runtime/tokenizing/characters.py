"""What a tokenizer makes of each character, as tables for `loops.reading`: the library is asked for every one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer

from embedserve_runtime.engines.base import Int32Array
from embedserve_runtime.loops.reading import (
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
from embedserve_runtime.tokenizing.spelling import PLAIN, Split, Surroundings

_ASCII = 0x80


class Characters(NamedTuple):
    """Shapes and meaning as `loops.reading.read` has them."""

    bytes: Bytes
    starts: Int32Array
    normalized: Bytes
    names: Bytes
    name_starts: Int32Array


def read_characters(tokenizer: Tokenizer, layout: Mapping[str, Any], around: Surroundings) -> Characters:
    """layout: tokenizer.json. A character is ODD that may join with another, that may be part of an added token once it
    is normalized, or that would be taken for the mark."""
    plain = PLAIN.findall("".join(map(chr, range(PLANE))))
    made = _normalized(tokenizer, plain)
    classes = _classes(sorted(set("".join(made))), around.split)
    raw, normal = _names(tokenizer, layout)
    hidden = frozenset("".join(normal))

    def characters_of(character: str, made: str) -> list[bytes]:
        # Added tokens that are looked for in normalized texts are found in texts of ASCII as they are written.
        joins = bool(normal) and (not made or (character >= "\x80" and not hidden.isdisjoint(made.lower())))
        if joins or (around.mark and around.mark in made):
            return [_written(ODD, "")]
        return [_written(classes[one], one) for one in made]

    rows = dict(zip(plain, map(characters_of, plain, made), strict=True))
    odd = [_written(ODD, "")]
    table = [rows.get(chr(code), odd) for code in range(PLANE)]
    names = [_small(name) for name in sorted({*raw, *normal})]
    return Characters(
        _of_bytes(table[:_ASCII], {byte for name in names for byte in (name[0], name[:1].upper()[0])}),
        _starts(table),
        np.frombuffer(b"".join(map(b"".join, table)), dtype=np.uint8).reshape(-1, CHARACTER).copy(),
        np.frombuffer(b"".join(names), dtype=np.uint8),
        _starts(names),
    )


def _normalized(tokenizer: Tokenizer, characters: Sequence[str]) -> list[str]:
    """What the normalizer makes of each, between two letters that it leaves as they are."""
    normalizer = tokenizer.normalizer
    if normalizer is None:
        return list(characters)
    return [normalizer.normalize_str(f"a{character}a")[1:-1] for character in characters]


def _classes(characters: Sequence[str], split: Split) -> dict[str, int]:
    """What the pre-tokenizer does to a character between two letters: it lets them be one word, takes it away, or
    makes it a word, alone or with others like it."""
    text = " ".join(f"a{character}a" for character in characters)
    starts = [start for _, (start, _) in split.library.pre_tokenize_str(text)]
    words = np.bincount(np.array(starts) // len("aaa "), minlength=len(characters))
    alone = SIGN if split is Split.LETTERS_AND_SIGNS else RUN
    kinds = [ODD, LETTER, BLANK, alone]
    return {
        character: kinds[count] if count < len(kinds) else ODD
        for character, count in zip(characters, words.tolist(), strict=True)
    }


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


def _written(class_: int, character: str) -> bytes:
    letters = character.encode("utf-8")
    return bytes((class_, len(letters))) + letters.ljust(CHARACTER - 2, b"\0")


def _starts(parts: Sequence[Sequence[object]]) -> Int32Array:
    starts = np.zeros(len(parts) + 1, dtype=np.int32)
    np.cumsum([len(part) for part in parts], out=starts[1:])
    return starts


def _of_bytes(table: Sequence[Sequence[bytes]], firsts: set[int]) -> Bytes:
    """table: characters that are made of each of ASCII. firsts: bytes with which a name begins."""
    found = np.full((2, 256), MANY, dtype=np.uint8)
    for byte, characters in enumerate(table):
        match characters:
            case []:
                found[:, byte] = NOTHING, 0
            case [one] if one[1] <= 1:
                found[:, byte] = one[0], one[2]
            case _:
                found[:, byte] = ODD, 0
    found[0, sorted(firsts)] += NAMED
    return found
