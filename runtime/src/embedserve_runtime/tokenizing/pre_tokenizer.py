"""What the normalizer and the pre-tokenizer do to a word of ASCII, where tokenizer.json says it: then the model's
pieces can be found without the library, or by its model alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tokenizers import Tokenizer, pre_tokenizers

from embedserve_runtime.tokenizing.layout import WORD_NORMALIZERS, flat

WordEncoder = Callable[[str], list[int]]

# A character that never joins with a neighbour: no mark, no joiner, no half of a surrogate pair.
PLAIN = re.compile(
    "[\x00-\u02ff\u0370-\u0482\u048a-\u052f\u05d0-\u05ea\u1e00-\u1fff\u2010-\u2027\u2030-\u205e\u20a0-\u20bf"
    "\u2100-\u214f\u2190-\u22ff\u3000-\u3029\u3041-\u3096\u30a1-\u30fe\u4e00-\u9fff\uac00-\ud7a3\uff01-\uff9d]"
)
_PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))
# More added tokens than this are not looked for in every new word.
_MAX_ADDED_TOKENS = 256


class Split(Enum):
    """Which pieces of a word of ASCII are words of the model."""

    LETTERS_AND_SIGNS = re.compile(r"[0-9A-Za-z]+|[^0-9A-Za-z]")
    LETTERS_AND_RUNS = re.compile(r"[0-9A-Z_a-z]+|[^0-9A-Z_a-z]+")
    WHOLE = re.compile(r".+")

    @property
    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        """What splits words that are not of ASCII alike."""
        match self:
            case Split.LETTERS_AND_SIGNS:
                return pre_tokenizers.BertPreTokenizer()
            case Split.LETTERS_AND_RUNS:
                return pre_tokenizers.Whitespace()
            case Split.WHOLE:
                return pre_tokenizers.WhitespaceSplit()


@dataclass(frozen=True, slots=True)
class PreTokenizerSettings:
    """What happens to a word around the tokenizer's model.

    lower: whether letters become small. mark: what is put before each word. added: what may be an added token, in
    small letters.
    """

    lower: bool
    split: Split
    mark: str
    added: frozenset[str]


def read_pre_tokenizer_settings(
    tokenizer: Tokenizer, layout: Mapping[str, Any]
) -> PreTokenizerSettings | None:
    """Read the settings from tokenizer.json; None where they cannot be known."""
    lower, pieces = _lowers_letters(tokenizer, layout), _read_split(layout)
    added = _added_tokens(tokenizer, layout)
    if lower is None or pieces is None or added is None:
        return None
    return PreTokenizerSettings(lower, *pieces, added)


def build_word_encoder(
    tokenizer: Tokenizer, layout: Mapping[str, Any], settings: PreTokenizerSettings
) -> WordEncoder:
    """Build a function that gives the ids of a word of printable ASCII, without special tokens, as `tokenizer.encode`
    gives them, by its model alone; other words are given to it."""
    model = tokenizer.model
    longest = layout["model"].get("max_input_chars_per_word", 0)
    added = re.compile("|".join(map(re.escape, sorted(settings.added))) or r"(?!)")
    pieces = settings.split.value.findall

    def of_piece(piece: str) -> list[int]:
        # WordPiece takes the longest token that fits, and so a whole one; 0 for the other models, which may not.
        if len(piece) <= longest and (whole := model.token_to_id(piece)) is not None:
            return [whole]
        return [token.id for token in model.tokenize(piece)]

    def encode_word(word: str) -> list[int]:
        if not (word.isascii() and word.isprintable()) or added.search(small := word.lower()):
            ids: list[int] = tokenizer.encode(word, add_special_tokens=False).ids
            return ids
        found: Sequence[str] = pieces(small if settings.lower else word)
        return [number for piece in found for number in of_piece(settings.mark + piece)]

    return encode_word


def _lowers_letters(tokenizer: Tokenizer, layout: Mapping[str, Any]) -> bool | None:
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


def _read_split(layout: Mapping[str, Any]) -> tuple[Split, str] | None:
    """How a word is split, and the mark before it."""
    match flat(layout["pre_tokenizer"], "pretokenizers"):
        case [{"type": "BertPreTokenizer"}]:
            return Split.LETTERS_AND_SIGNS, ""
        case [{"type": "Whitespace"}]:
            return Split.LETTERS_AND_RUNS, ""
        case [{"type": "WhitespaceSplit"}]:
            return Split.WHOLE, ""
        case [{"type": "WhitespaceSplit"}, {"type": "Metaspace", "prepend_scheme": "always", **rest}]:
            mark = str(rest["replacement"])
            return None if mark.isascii() else (Split.WHOLE, mark)
        case _:
            return None


def _added_tokens(tokenizer: Tokenizer, layout: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the names of added tokens; None where they cannot be looked for."""
    if len(layout["added_tokens"]) > _MAX_ADDED_TOKENS:
        return None
    normalizer = tokenizer.normalizer
    names = {token["content"] for token in layout["added_tokens"]}
    if normalizer is not None:
        names |= {normalizer.normalize_str(name) for name in names}
    return None if "" in names else frozenset(name.lower() for name in names)
