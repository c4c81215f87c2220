"""What tokenizer.json says that cutting depends on, read once at start."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from tokenizers import AddedToken, Encoding, Tokenizer, normalizers

from embedserve_runtime.engines.base import Int32Array, Tokens, TokenSequence
from embedserve_runtime.errors import ModelInvalid

# Before a blank that follows a letter or digit, every pre-tokenizer of `_splits_at_blanks` starts a new word,
# and no normalizer looks across. Narrower than it could be (no punctuation, no exotic blanks), and so always
# right.
_BLANK = r"(?<=[^\W_])(?=[ \t\n])"
# BertNormalizer puts blanks around each ideograph of this block.
_IDEOGRAPHS = r"(?<=[\u4e00-\u9fff])(?=[\u4e00-\u9fff])"
# One of these has a token in every vocabulary; a BPE without an unknown token has none for the others.
_PROBES = ("a", "e", "A", "1", ".", "的", "!")

# These change a character by itself or with the marks that follow it.
_LOCAL_NORMALIZERS = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase"}
# Between blanks these change a character by itself or with the marks that follow it, and one of ASCII into characters
# of ASCII, whatever its neighbours.
WORD_NORMALIZERS = _LOCAL_NORMALIZERS | {"StripAccents", "BertNormalizer", "Precompiled", "Nmt", "Strip"}


@dataclass(frozen=True, slots=True)
class Boundaries:
    """Where a text may be cut so that the ids before the cut stay what they were.

    pattern: matches at such places; None where that is not certain.
    both_ways: the ids after the cut stay too, since a word has the same ids wherever it stands.
    """

    pattern: re.Pattern[str] | None
    both_ways: bool


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Consecutive tokens of a pair that come from one place. text: 0 or 1; None for special tokens, which are `ids`."""

    text: int | None
    type: int
    ids: Int32Array


@dataclass(frozen=True, slots=True)
class PairTemplate:
    """The order of special tokens and texts in a pair, and the token type of each."""

    runs: tuple[Run, ...]

    @property
    def special_tokens(self) -> int:
        return sum(len(run.ids) for run in self.runs if run.text is None)

    def join(self, texts: tuple[Int32Array, Int32Array], *, typed: bool) -> Tokens:
        """One sequence of the ids of both texts; with token types if `typed`."""
        parts = [run.ids if run.text is None else texts[run.text] for run in self.runs]
        ids = np.concatenate(parts)
        if not typed:
            return ids
        types = np.repeat([run.type for run in self.runs], [len(part) for part in parts])
        return TokenSequence(ids, types.astype(np.int32))


def read_pair_template(tokenizer: Tokenizer) -> PairTemplate:
    """The template as the tokenizer's post-processor applies it, of whatever kind that is.

    Raises ModelInvalid when a text is left out or repeated.
    """
    probe = _probe(tokenizer)
    encoding = tokenizer.encode(probe, probe)
    runs = []
    origins = zip(encoding.sequence_ids, encoding.type_ids, encoding.ids, strict=True)
    for (text, kind), tokens in groupby(origins, key=lambda origin: origin[:2]):
        runs.append(Run(text, kind, np.array([token for _, _, token in tokens], dtype=np.int32)))
    template = PairTemplate(tuple(runs))
    texts = sorted(run.text for run in runs if run.text is not None)
    if texts != [0, 1] or template.special_tokens != tokenizer.num_special_tokens_to_add(True):
        raise ModelInvalid(
            "tokenizer.json makes a pair of something else than special tokens and each text once, "
            "which is not supported"
        )
    return template


def read_special_tokens(tokenizer: Tokenizer) -> tuple[Int32Array, Int32Array]:
    """The ids that the tokenizer puts before and after a single text."""
    text = _probe(tokenizer)
    probe = tokenizer.encode(text)
    inner = tokenizer.encode(text, add_special_tokens=False).ids
    head = next((i for i, special in enumerate(probe.special_tokens_mask) if not special), len(probe.ids))
    ids = np.array(probe.ids, dtype=np.int32)
    tail = head + len(inner)
    if probe.ids[head:tail] != inner or not all(probe.special_tokens_mask[tail:]):
        raise ModelInvalid("tokenizer.json puts special tokens inside the text, which is not supported")
    return ids[:head], ids[tail:]


def read_boundaries(layout: Mapping[str, Any]) -> Boundaries:
    """layout: tokenizer.json."""
    return Boundaries(_boundary(layout), _words_are_alike_everywhere(layout))


def lowercase_first(tokenizer: Tokenizer) -> None:
    """Lower-case before the tokenizer's own normalizer, as sentence-transformers does for `do_lower_case`."""
    own = json.loads(tokenizer.to_str())["normalizer"]
    if any(part["type"] == "Lowercase" or part.get("lowercase") for part in flat(own, "normalizers")):
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
        known = next(
            (text for text in (marker, marker.split()[0]) if tokenizer.token_to_id(text) is not None), None
        )
        if known is not None and tokenizer.encode(known, add_special_tokens=False).tokens != [known]:
            tokenizer.add_special_tokens([AddedToken(known, normalized=False, special=True)])


def _probe(tokenizer: Tokenizer) -> str:
    def encoded(text: str) -> Encoding:
        return tokenizer.encode(text, add_special_tokens=False)

    found = next((text for text in _PROBES if len(encoded(text))), None)
    if found is None:
        raise ModelInvalid(f"tokenizer.json has no token for any of {' '.join(_PROBES)}")
    return found


def _boundary(layout: Mapping[str, Any]) -> re.Pattern[str] | None:
    if not any(_splits_at_blanks(part) for part in flat(layout["pre_tokenizer"], "pretokenizers")):
        return None
    if any(re.search(r"\S\s", token["content"]) for token in layout["added_tokens"]):
        return None
    normalizer = layout["normalizer"] or {}
    if (
        _is_bert(layout)
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


def _words_are_alike_everywhere(layout: Mapping[str, Any]) -> bool:
    """Whether a text that begins with a blank has the ids that it has behind a word."""
    if any(token["rstrip"] and token["content"][-1:].isalnum() for token in layout["added_tokens"]):
        return False
    steps = flat(layout["pre_tokenizer"], "pretokenizers")
    if _is_bert(layout):
        return True
    if steps and steps[0]["type"] == "WhitespaceSplit":
        return all(
            step["type"] == "Metaspace" and step["prepend_scheme"] in {"always", "never"}
            for step in steps[1:]
        )
    local = all(part["type"] in _LOCAL_NORMALIZERS for part in flat(layout["normalizer"], "normalizers"))
    return local and all(
        (step["type"] == "ByteLevel" and not step["add_prefix_space"])
        or (step["type"] == "Split" and _splits_at_blanks(step))
        for step in steps
    )


def _is_bert(layout: Mapping[str, Any]) -> bool:
    return (layout["pre_tokenizer"] or {}).get("type") == "BertPreTokenizer"


def flat(part: dict[str, Any] | None, children: str) -> list[dict[str, Any]]:
    """The steps of a normalizer or pre-tokenizer, sequences resolved. children: what a sequence calls its steps."""
    if part is None:
        return []
    if part["type"] == "Sequence":
        return [leaf for child in part[children] for leaf in flat(child, children)]
    return [part]
