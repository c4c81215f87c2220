"""Texts of the lengths that a model is served with, up to a bound: reduced precision is tried with them beside the
corpus, whose texts end where time does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle, islice

from embedserve_runtime.forward.batch import Tokens
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.heads.description import Task
from embedserve_runtime.tokenizing import TextTokenizer, TruncationRules

# A longer text takes more time than it tells: attention is in float32, and products are those of each token alone.
MAX_TOKENS = 2_048


def choose_lengths(longest: int, shortest: int, tokens: int) -> list[int]:
    """Return the greatest length, its half, its quarter and so on, ascending: those of more than `shortest` tokens, and
    of at most `tokens` together."""
    lengths: list[int] = []
    length = min(longest, MAX_TOKENS)
    while length > shortest and sum(lengths) + length <= tokens:
        lengths.append(length)
        length //= 2
    return lengths[::-1]


def tokenize_long_texts(card: ModelCard, texts: Sequence[str], lengths: Sequence[int]) -> list[Tokens]:
    """Join texts to one of each length, and tokenize it as the model reads it; behind a short query for a reranker."""
    truncate = TruncationRules(truncate=True)
    sequences: list[Tokens] = []
    for number, length in enumerate(lengths):
        tokenizer = TextTokenizer.from_card(replace(card, max_length=length))
        text = join_words(texts[number:], length)
        if card.task is Task.RERANK:
            sequences += tokenizer.encode_pairs([(texts[number], text)], truncate)
        else:
            sequences += tokenizer.encode([text], card.default_prompt_text, truncate)
    return sequences


def join_words(texts: Sequence[str], count: int) -> str:
    """Join the words of texts, from the first text again after the last, to `count` words: no tokenizer makes
    fewer tokens of them."""
    words = [word for text in texts for word in text.split()]
    return " ".join(islice(cycle(words), count))
