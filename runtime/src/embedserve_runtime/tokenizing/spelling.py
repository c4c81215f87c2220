"""Ids of one word of ASCII, by the tokenizer's model alone: most of what the library does for a word is around it.

The library looks for added tokens, normalizes, splits and builds an encoding with places: several times the work of the
model for a single word. Where tokenizer.json says what those steps make of ASCII, the model is asked directly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

from embedserve_runtime.tokenizing.layout import WORD_NORMALIZERS, flat

Spell = Callable[[str], list[int]]

_PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))
# What pre-tokenizers make of a word of ASCII.
_PIECES = {
    "BertPreTokenizer": re.compile(r"[0-9A-Za-z]+|[^0-9A-Za-z]"),
    "Whitespace": re.compile(r"[0-9A-Z_a-z]+|[^0-9A-Z_a-z]+"),
}
# More added tokens than this are not looked for in every new word.
_MOST_ADDED = 256


def spell_by_model(tokenizer: Tokenizer, layout: Mapping[str, Any]) -> Spell | None:
    """Ids of a word of printable ASCII, without special tokens, as `tokenizer.encode` gives them; other words are
    given to it. None where it cannot be known what happens around the model. layout: tokenizer.json.
    """
    lower, pieces = _letters(tokenizer, layout), _splitter(layout)
    added = _added(tokenizer, layout)
    if lower is None or pieces is None or added is None:
        return None
    model = tokenizer.model
    longest = layout["model"].get("max_input_chars_per_word", 0)

    def of_piece(piece: str) -> list[int]:
        # WordPiece takes the longest token that fits, and so a whole one; 0 for the other models, which may not.
        if len(piece) <= longest and (whole := model.token_to_id(piece)) is not None:
            return [whole]
        return [token.id for token in model.tokenize(piece)]

    def spell(word: str) -> list[int]:
        if not (word.isascii() and word.isprintable()) or added.search(small := word.lower()):
            ids: list[int] = tokenizer.encode(word, add_special_tokens=False).ids
            return ids
        return [number for piece in pieces(small if lower else word) for number in of_piece(piece)]

    return spell


def _letters(tokenizer: Tokenizer, layout: Mapping[str, Any]) -> bool | None:
    """Whether the normalizer lowers the letters of ASCII; None where it does anything else to ASCII."""
    if not all(map(_is_by_character, flat(layout["normalizer"], "normalizers"))):
        return None
    normalizer = tokenizer.normalizer
    if normalizer is None:
        return False
    made = [normalizer.normalize_str(character) for character in _PRINTABLE]
    if made == list(_PRINTABLE):
        return False
    return True if made == list(_PRINTABLE.lower()) else None


def _is_by_character(step: Mapping[str, Any]) -> bool:
    match step:
        case {"type": "Replace", "pattern": {"Regex": " {2,}" | r"\s+"}}:
            return True  # a word has no blanks
        case _:
            return step["type"] in WORD_NORMALIZERS


def _splitter(layout: Mapping[str, Any]) -> Callable[[str], Sequence[str]] | None:
    """What the model is asked for, of a word."""
    match flat(layout["pre_tokenizer"], "pretokenizers"):
        case [{"type": "BertPreTokenizer" | "Whitespace" as kind}]:
            return _PIECES[kind].findall
        case [{"type": "WhitespaceSplit"}]:
            return lambda word: (word,)
        case [{"type": "WhitespaceSplit"}, {"type": "Metaspace", "prepend_scheme": "always", **rest}]:
            mark = str(rest["replacement"])
            return None if mark.isascii() else lambda word: (mark + word,)
        case _:
            return None


def _added(tokenizer: Tokenizer, layout: Mapping[str, Any]) -> re.Pattern[str] | None:
    """Finds, in small letters, what may be an added token; None where they cannot be looked for."""
    if len(layout["added_tokens"]) > _MOST_ADDED:
        return None
    normalizer = tokenizer.normalizer
    names = {token["content"] for token in layout["added_tokens"]}
    if normalizer is not None:
        names |= {normalizer.normalize_str(name) for name in names}
    if "" in names:
        return None
    found = "|".join(sorted(re.escape(name.lower()) for name in names))
    return re.compile(found or r"(?!)")
