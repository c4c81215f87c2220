"""Tokenizers of every kind in `kinds.py` that share no code with the `tokenizers` library, which the runtime uses.

They read only the model from a `tokenizer.json`: its vocabulary, scores and merges. Normalization, words and special
tokens are stated here by hand. WordPiece is that of transformers in Python, byte-level BPE is tiktoken's. No package in
the environment has another BPE of characters or another Unigram, so these two are written here as the papers define
them.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any
from unicodedata import normalize

from tiktoken import Encoding
from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

from embedserve_runtime.tokenizing import Side
from tests.runtime.tokenizing.kinds import QWEN_WORDS, SPECIAL, saved

# Returns the ids of a text that has no special tokens.
Encode = Callable[[str], list[int]]

# Source: GPT-2's encoder.py.
GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
BERT_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# How much worse than the worst piece an unknown character is. Source: SentencePiece, `kUnkPenalty`.
UNKNOWN_PENALTY = 10.0


def encode(kind: str, text: str, max_length: int, side: Side) -> list[int]:
    """Return the ids of a text with its special tokens, cut to max_length."""
    special, (first, last), encode_text = _tokenizer(kind)
    parts = re.split("({})".format("|".join(map(re.escape, special))), text)
    ids = [
        token_id for part in parts for token_id in ([special[part]] if part in special else encode_text(part))
    ]
    room = max_length - len(first) - len(last)
    truncated = ids[:room] if side == "right" else ids[max(len(ids) - room, 0) :]
    return [*first, *truncated, *last]


@cache
def _tokenizer(kind: str) -> tuple[Mapping[str, int], tuple[list[int], list[int]], Encode]:
    """Return the ids of the special tokens by name, those before and after every text, and the function of the text."""
    model = json.loads(saved(kind))["model"]
    names = BERT_SPECIAL if kind == "minilm" else SPECIAL
    vocabulary = _vocabulary(model)
    first, last = ([vocabulary[token] for token in tokens] for tokens in TEMPLATES[kind])
    return {name: vocabulary[name] for name in names}, (first, last), ENCODERS[kind](model)


def _vocabulary(model: Mapping[str, Any]) -> Mapping[str, int]:
    if model["type"] == "Unigram":
        return {piece: number for number, (piece, _) in enumerate(model["vocab"])}
    vocabulary: Mapping[str, int] = model["vocab"]
    return vocabulary


def _wordpiece(model: Mapping[str, Any]) -> Encode:
    pieces = sorted(model["vocab"], key=lambda piece: int(model["vocab"][piece]))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "vocab.txt"
        file.write_text("\n".join(pieces) + "\n", encoding="utf-8")
        unknown = model["unk_token"]
        # Their defaults would be special tokens, which `encode` has taken out of the text already.
        special_tokens = dict.fromkeys(("sep_token", "pad_token", "cls_token", "mask_token"), unknown)
        tokenizer = BertTokenizerLegacy(str(file), unk_token=unknown, **special_tokens)

    def encode_text(text: str) -> list[int]:
        ids: list[int] = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text))
        return ids

    return encode_text


def _byte_bpe(words: str, normalizer: Callable[[str], str] = str) -> Callable[[Mapping[str, Any]], Encode]:
    """Byte-level BPE by tiktoken. words: the regular expression of a word, inside of which bytes are merged."""

    def build(model: Mapping[str, Any]) -> Encode:
        byte_of = {character: byte for byte, character in _byte_characters().items()}
        ranks = {
            bytes(byte_of[character] for character in piece): number
            for piece, number in model["vocab"].items()
            if piece not in SPECIAL
        }
        encoding = Encoding("trained", pat_str=words, mergeable_ranks=ranks, special_tokens={})
        return lambda text: encoding.encode_ordinary(normalizer(text))

    return build


def _byte_characters() -> Mapping[int, str]:
    """Return the printable character that stands for each byte in a vocabulary. Source: GPT-2's encoder.py."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    unprintable = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {
        byte: chr(256 + i) for i, byte in enumerate(unprintable)
    }


def _character_bpe(model: Mapping[str, Any]) -> Encode:
    """BPE of characters (Sennrich et al., 2016): joins the pair of neighbours that training merged first."""
    ids: Mapping[str, int] = model["vocab"]
    rank = {tuple(merge): number for number, merge in enumerate(model["merges"])}

    def encode_text(text: str) -> list[int]:
        pieces = list(text.replace(" ", "▁"))
        while len(pieces) > 1:
            best = min(pairwise(pieces), key=lambda pair: rank.get(pair, inf))
            if best not in rank:
                break
            pieces = _joined(pieces, best)
        return _fused([ids.get(piece, ids[model["unk_token"]]) for piece in pieces], ids[model["unk_token"]])

    return encode_text


def _joined(pieces: Sequence[str], pair: tuple[str, str]) -> list[str]:
    """Join every occurrence of a pair of neighbours, from the left."""
    joined: list[str] = []
    for piece in pieces:
        if joined and (joined[-1], piece) == pair:
            joined[-1] += piece
        else:
            joined.append(piece)
    return joined


def _unigram(words_of: Callable[[str], Sequence[str]]) -> Callable[[Mapping[str, Any]], Encode]:
    """Unigram as SentencePiece has it. words_of: normalizes a text and splits it into words, segmented one by one."""

    def build(model: Mapping[str, Any]) -> Encode:
        ids = _vocabulary(model)
        scores: Mapping[str, float] = dict(model["vocab"])
        unknown = model["unk_id"]
        unknown_score = min(scores.values()) - UNKNOWN_PENALTY

        def encode_text(text: str) -> list[int]:
            token_ids: list[int] = []
            for word in words_of(text):
                pieces = _most_likely(word, scores, unknown_score)
                token_ids += _fused([ids.get(piece, unknown) for piece in pieces], unknown)
            return token_ids

        return encode_text

    return build


def _most_likely(word: str, scores: Mapping[str, float], unknown_score: float) -> list[str]:
    """Return the segmentation of the greatest likelihood (Kudo, 2018), by Viterbi's algorithm."""
    longest = max(map(len, scores))
    best: list[tuple[float, int]] = [(0.0, 0)]
    for stop in range(1, len(word) + 1):
        reached = (-inf, 0)
        for start in range(max(stop - longest, 0), stop):
            score = scores.get(word[start:stop], unknown_score if start == stop - 1 else -inf)
            if best[start][0] + score > reached[0]:
                reached = (best[start][0] + score, start)
        best.append(reached)
    pieces: list[str] = []
    stop = len(word)
    while stop:
        start = best[stop][1]
        pieces.append(word[start:stop])
        stop = start
    return pieces[::-1]


def _fused(ids: Sequence[int], unknown: int) -> list[int]:
    """Keep one of several unknown tokens in a row."""
    return [
        token_id
        for position, token_id in enumerate(ids)
        if token_id != unknown or position == 0 or ids[position - 1] != unknown
    ]


def _words_of_xlm_roberta(text: str) -> list[str]:
    return [f"▁{word}" for word in normalize("NFKC", text).split()]


def _words_of_deberta(text: str) -> list[str]:
    text = normalize("NFKC", text.strip())
    return re.findall("▁[^▁]*", f"▁{text}".replace(" ", "▁")) if text else []


ENCODERS: Mapping[str, Callable[[Mapping[str, Any]], Encode]] = {
    "minilm": _wordpiece,
    "bert": _wordpiece,
    "roberta": _byte_bpe(GPT2_WORDS),
    "modernbert": _byte_bpe(GPT2_WORDS, partial(normalize, "NFC")),
    "xlm-roberta": _unigram(_words_of_xlm_roberta),
    "deberta": _unigram(_words_of_deberta),
    "qwen": _byte_bpe(QWEN_WORDS, partial(normalize, "NFC")),
    "llama": _byte_bpe(GPT2_WORDS),
    "gemma": _character_bpe,
    "no post-processor": _byte_bpe(GPT2_WORDS),
}
# The special tokens before and after a text.
TEMPLATES: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "minilm": (["[CLS]"], ["[SEP]"]),
    "bert": (["<s>"], ["</s>"]),
    "roberta": (["<s>"], ["</s>"]),
    "modernbert": (["<s>"], ["</s>"]),
    "xlm-roberta": (["<s>"], ["</s>"]),
    "deberta": (["<s>"], ["</s>"]),
    "qwen": ([], ["</s>"]),
    "llama": (["<s>"], []),
    "gemma": (["<s>"], ["</s>"]),
    "no post-processor": ([], []),
}
