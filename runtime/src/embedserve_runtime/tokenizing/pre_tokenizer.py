"""Reads from tokenizer.json how the normalizer and pre-tokenizer change an ASCII word.

Where that is known, the word can be tokenized without the library, or by the library's model alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tokenizers import Tokenizer, pre_tokenizers

from embedserve_runtime.model.vocabulary import flatten_steps
from embedserve_runtime.tokenizing.tokenizer_json import WORD_NORMALIZERS

WordEncoder = Callable[[str], list[int]]

# A character that never joins with a neighbor: not a mark, not a joiner, not half of a surrogate pair.
INDEPENDENT_CHARACTER = re.compile(
    "[\x00-\u02ff\u0370-\u0482\u048a-\u052f\u05d0-\u05ea\u1e00-\u1fff\u2010-\u2027\u2030-\u205e\u20a0-\u20bf"
    "\u2100-\u214f\u2190-\u22ff\u3000-\u3029\u3041-\u3096\u30a1-\u30fe\u4e00-\u9fff\uac00-\ud7a3\uff01-\uff9d]"
)
_PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))
# With more added tokens than this the library reads each new word: every name is searched in it.
_MAX_ADDED_TOKENS = 256


class WordSplit(Enum):
    """The pattern that splits an ASCII word into the words that the model reads."""

    LETTERS_AND_SIGNS = re.compile(r"[0-9A-Za-z]+|[^0-9A-Za-z]")
    LETTERS_AND_RUNS = re.compile(r"[0-9A-Z_a-z]+|[^0-9A-Z_a-z]+")
    WHOLE = re.compile(r".+")

    @property
    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        """The library's pre-tokenizer that splits in the same way, for words that are not ASCII."""
        match self:
            case WordSplit.LETTERS_AND_SIGNS:
                return pre_tokenizers.BertPreTokenizer()
            case WordSplit.LETTERS_AND_RUNS:
                return pre_tokenizers.Whitespace()
            case WordSplit.WHOLE:
                return pre_tokenizers.WhitespaceSplit()


@dataclass(frozen=True, slots=True)
class PreTokenizerSettings:
    """The changes that the normalizer and pre-tokenizer make to a word.

    lowercases: whether letters are lower-cased. mark: the character put before each word. added_tokens: what may be an
    added token, in lower case.
    """

    lowercases: bool
    split: WordSplit
    mark: str
    added_tokens: frozenset[str]


def read_pre_tokenizer_settings(
    tokenizer: Tokenizer, tokenizer_json: Mapping[str, Any]
) -> PreTokenizerSettings | None:
    """Read the settings from tokenizer.json; None where they cannot be known."""
    lower, pieces = _lowers_letters(tokenizer, tokenizer_json), _read_split(tokenizer_json)
    added = _read_added_tokens(tokenizer, tokenizer_json)
    if lower is None or pieces is None or added is None:
        return None
    return PreTokenizerSettings(lower, *pieces, added)


def build_word_encoder(
    tokenizer: Tokenizer, tokenizer_json: Mapping[str, Any], settings: PreTokenizerSettings
) -> WordEncoder:
    """Build a function that gives the ids of a word of printable ASCII, without special tokens, as `tokenizer.encode`
    gives them, by its model alone; other words are given to it."""
    model = tokenizer.model
    max_word_length = tokenizer_json["model"].get("max_input_chars_per_word", 0)
    added = re.compile("|".join(map(re.escape, sorted(settings.added_tokens))) or r"(?!)")
    pieces = settings.split.value.findall

    def encode_piece(piece: str) -> list[int]:
        # WordPiece takes the longest token that matches, and so the whole piece if there is one; other models may not.
        if len(piece) <= max_word_length and (whole := model.token_to_id(piece)) is not None:
            return [whole]
        return [token.id for token in model.tokenize(piece)]

    def encode_word(word: str) -> list[int]:
        if not (word.isascii() and word.isprintable()) or added.search(lowered := word.lower()):
            ids: list[int] = tokenizer.encode(word, add_special_tokens=False).ids
            return ids
        split: Sequence[str] = pieces(lowered if settings.lowercases else word)
        return [number for piece in split for number in encode_piece(settings.mark + piece)]

    return encode_word


def _lowers_letters(tokenizer: Tokenizer, tokenizer_json: Mapping[str, Any]) -> bool | None:
    """Return whether the normalizer lower-cases ASCII letters; None where it does anything else to ASCII."""
    if not all(map(_is_by_character, flatten_steps(tokenizer_json["normalizer"], "normalizers"))):
        return None
    normalizer = tokenizer.normalizer
    if normalizer is None:
        return False
    normalized = [normalizer.normalize_str(character) for character in _PRINTABLE]
    if normalized == list(_PRINTABLE):
        return False
    return True if normalized == list(_PRINTABLE.lower()) else None


def _is_by_character(step: Mapping[str, Any]) -> bool:
    match step:
        case {"type": "Replace", "pattern": {"Regex": " {2,}" | r"\s+"}}:
            return True  # a word has no blanks
        case _:
            return step["type"] in WORD_NORMALIZERS


def _read_split(tokenizer_json: Mapping[str, Any]) -> tuple[WordSplit, str] | None:
    """Return how a word is split, and the mark before it; None where that is not known."""
    match flatten_steps(tokenizer_json["pre_tokenizer"], "pretokenizers"):
        case [{"type": "BertPreTokenizer"}]:
            return WordSplit.LETTERS_AND_SIGNS, ""
        case [{"type": "Whitespace"}]:
            return WordSplit.LETTERS_AND_RUNS, ""
        case [{"type": "WhitespaceSplit"}]:
            return WordSplit.WHOLE, ""
        case [{"type": "WhitespaceSplit"}, {"type": "Metaspace", "prepend_scheme": "always", **rest}]:
            mark = str(rest["replacement"])
            return None if mark.isascii() else (WordSplit.WHOLE, mark)
        case _:
            return None


def _read_added_tokens(tokenizer: Tokenizer, tokenizer_json: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the names of added tokens in lower case; None where they cannot be searched."""
    if len(tokenizer_json["added_tokens"]) > _MAX_ADDED_TOKENS:
        return None
    normalizer = tokenizer.normalizer
    names = {token["content"] for token in tokenizer_json["added_tokens"]}
    if normalizer is not None:
        names |= {normalizer.normalize_str(name) for name in names}
    return None if "" in names else frozenset(name.lower() for name in names)
