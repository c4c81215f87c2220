"""Reads from tokenizer.json what truncation depends on, once at the start."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from tokenizers import AddedToken, Encoding, Tokenizer, normalizers

from embedserve_runtime.errors import ModelInvalid
from embedserve_runtime.forward.arrays import Int32Array
from embedserve_runtime.forward.batch import Tokens, TokenSequence
from embedserve_runtime.model.vocabulary import flatten_steps

# Before a blank that follows a letter or digit, every pre-tokenizer of `_splits_at_blanks` starts a new word, and no
# normalizer looks across. The pattern is narrower than it could be (no punctuation, no rare blanks), and so always
# right.
_BLANK = r"(?<=[^\W_])(?=[ \t\n])"
# BertNormalizer puts blanks around each ideograph of this block.
_IDEOGRAPHS = r"(?<=[\u4e00-\u9fff])(?=[\u4e00-\u9fff])"
# Every vocabulary has a token for one of these; a BPE without an unknown token has none for the others.
_PROBE_TEXTS = ("a", "e", "A", "1", ".", "的", "!")

# These change a character by itself or with the marks that follow it.
_LOCAL_NORMALIZERS = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase"}
# Between blanks these change a character by itself or with the marks that follow it, and one of ASCII into characters
# of ASCII, whatever its neighbors.
WORD_NORMALIZERS = _LOCAL_NORMALIZERS | {"StripAccents", "BertNormalizer", "Precompiled", "Nmt", "Strip"}


@dataclass(frozen=True, slots=True)
class TextBoundaries:
    """The positions where a text can be cut without changing the ids before the cut.

    pattern: matches at such positions; None where there are none for certain.
    keeps_right_part: whether the ids after the cut stay the same too, since a word has the same ids everywhere.
    """

    pattern: re.Pattern[str] | None
    keeps_right_part: bool


@dataclass(frozen=True, slots=True, eq=False)
class TemplateSegment:
    """Consecutive tokens of a pair that come from the same source.

    text: 0 or 1 for one of the texts; None for special tokens, which are `ids`.
    """

    text: int | None
    type: int
    ids: Int32Array


@dataclass(frozen=True, slots=True)
class PairTemplate:
    """The order of special tokens and texts in a pair, and the token type of each."""

    segments: tuple[TemplateSegment, ...]

    @property
    def special_tokens(self) -> int:
        return sum(len(segment.ids) for segment in self.segments if segment.text is None)

    def join(self, texts: tuple[Int32Array, Int32Array], *, typed: bool) -> Tokens:
        """Join the ids of both texts to one sequence; with token types if `typed`."""
        parts = [segment.ids if segment.text is None else texts[segment.text] for segment in self.segments]
        ids = np.concatenate(parts)
        if not typed:
            return ids
        types = np.repeat([segment.type for segment in self.segments], [len(part) for part in parts])
        return TokenSequence(ids, types.astype(np.int32))


def read_pair_template(tokenizer: Tokenizer) -> PairTemplate:
    """Read the template from what the tokenizer's post-processor makes of a pair, whatever kind it is.

    Raises ModelInvalid when a text is left out or repeated.
    """
    probe = _find_probe_text(tokenizer)
    encoding = tokenizer.encode(probe, probe)
    segments = []
    origins = zip(encoding.sequence_ids, encoding.type_ids, encoding.ids, strict=True)
    for (text, kind), tokens in groupby(origins, key=lambda origin: origin[:2]):
        segments.append(
            TemplateSegment(text, kind, np.array([token for _, _, token in tokens], dtype=np.int32))
        )
    template = PairTemplate(tuple(segments))
    texts = sorted(segment.text for segment in segments if segment.text is not None)
    if texts != [0, 1] or template.special_tokens != tokenizer.num_special_tokens_to_add(True):
        raise ModelInvalid(
            "tokenizer.json makes a pair of something else than special tokens and each text once, "
            "which is not supported"
        )
    return template


def read_special_tokens(tokenizer: Tokenizer) -> tuple[Int32Array, Int32Array]:
    """Return the ids that the tokenizer puts before and after a single text."""
    text = _find_probe_text(tokenizer)
    probe = tokenizer.encode(text)
    inner = tokenizer.encode(text, add_special_tokens=False).ids
    head = next((i for i, special in enumerate(probe.special_tokens_mask) if not special), len(probe.ids))
    ids = np.array(probe.ids, dtype=np.int32)
    tail = head + len(inner)
    if probe.ids[head:tail] != inner or not all(probe.special_tokens_mask[tail:]):
        raise ModelInvalid("tokenizer.json puts special tokens inside the text, which is not supported")
    return ids[:head], ids[tail:]


def read_boundaries(tokenizer_json: Mapping[str, Any]) -> TextBoundaries:
    """Read the boundaries from the content of tokenizer.json."""
    return TextBoundaries(_build_boundary_pattern(tokenizer_json), _are_words_context_free(tokenizer_json))


def lowercase_first(tokenizer: Tokenizer) -> None:
    """Lower-case before the tokenizer's own normalizer, as sentence-transformers does for `do_lower_case`."""
    own = json.loads(tokenizer.to_str())["normalizer"]
    if any(
        part["type"] == "Lowercase" or part.get("lowercase") for part in flatten_steps(own, "normalizers")
    ):
        return
    steps = [normalizers.Lowercase()]
    if tokenizer.normalizer is not None:
        steps.append(tokenizer.normalizer)
    tokenizer.normalizer = normalizers.Sequence(steps)


def register_markers(tokenizer: Tokenizer, markers: Sequence[str]) -> None:
    """Make texts that inputs begin with single tokens, where the vocabulary has them as such.

    A marker, or else its first word, that is in the vocabulary and would be split or not found in a text, becomes a
    special token. Source: `_register_prefix_tokens` of sentence-transformers' MultiVectorEncoder.
    """
    for marker in markers:
        token = next(
            (text for text in (marker, marker.split()[0]) if tokenizer.token_to_id(text) is not None), None
        )
        if token is not None and tokenizer.encode(token, add_special_tokens=False).tokens != [token]:
            tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True)])


def _find_probe_text(tokenizer: Tokenizer) -> str:
    def encode(text: str) -> Encoding:
        return tokenizer.encode(text, add_special_tokens=False)

    probe = next((text for text in _PROBE_TEXTS if len(encode(text))), None)
    if probe is None:
        raise ModelInvalid(f"tokenizer.json has no token for any of {' '.join(_PROBE_TEXTS)}")
    return probe


def _build_boundary_pattern(tokenizer_json: Mapping[str, Any]) -> re.Pattern[str] | None:
    if not any(
        _splits_at_blanks(part) for part in flatten_steps(tokenizer_json["pre_tokenizer"], "pretokenizers")
    ):
        return None
    if any(re.search(r"\S\s", token["content"]) for token in tokenizer_json["added_tokens"]):
        return None
    normalizer = tokenizer_json["normalizer"] or {}
    if (
        _is_bert(tokenizer_json)
        and normalizer.get("type") == "BertNormalizer"
        and normalizer.get("handle_chinese_chars")
    ):
        return re.compile(f"{_BLANK}|{_IDEOGRAPHS}")
    return re.compile(_BLANK)


def _splits_at_blanks(pre_tokenizer: dict[str, Any]) -> bool:
    match pre_tokenizer:
        case {"type": "BertPreTokenizer" | "Whitespace" | "WhitespaceSplit"}:
            return True
        case {"type": "ByteLevel", **options}:
            return bool(options.get("use_regex", True))
        case {"type": "Metaspace", **options}:
            return bool(options.get("split", True))
        case {"type": "Split", "pattern": {"Regex": str(pattern)}}:
            return r"\s+(?!\S)" in pattern  # the GPT-2 expression and its descendants
        case _:
            return False


def _are_words_context_free(tokenizer_json: Mapping[str, Any]) -> bool:
    """Return whether a text that begins with a blank has the same ids as after a word."""
    if any(token["rstrip"] and token["content"][-1:].isalnum() for token in tokenizer_json["added_tokens"]):
        return False
    steps = flatten_steps(tokenizer_json["pre_tokenizer"], "pretokenizers")
    if _is_bert(tokenizer_json):
        return True
    if steps and steps[0]["type"] == "WhitespaceSplit":
        return all(
            step["type"] == "Metaspace" and step["prepend_scheme"] in {"always", "never"}
            for step in steps[1:]
        )
    local = all(
        part["type"] in _LOCAL_NORMALIZERS
        for part in flatten_steps(tokenizer_json["normalizer"], "normalizers")
    )
    return local and all(
        (step["type"] == "ByteLevel" and not step["add_prefix_space"])
        or (step["type"] == "Split" and _splits_at_blanks(step))
        for step in steps
    )


def _is_bert(tokenizer_json: Mapping[str, Any]) -> bool:
    return (tokenizer_json["pre_tokenizer"] or {}).get("type") == "BertPreTokenizer"
