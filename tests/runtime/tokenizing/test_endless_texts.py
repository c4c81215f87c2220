"""Texts of megabytes: how much of them is read, and that the ids are those of the whole text."""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from functools import cache, partial
from typing import Any, cast

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from embedserve_runtime.errors import InputTooLong
from embedserve_runtime.tokenizing import Side, TextTokenizer, TruncationRules
from embedserve_runtime.tokenizing.backend import MIN_READ_CHARACTERS
from tests.runtime.tokenizing.kinds import SCRIPTS, ours, saved
from tests.runtime.tokenizing.test_tokenizing import MINILM

SIDES: list[Side] = ["right", "left"]
# What is read of a text in all calls together: the windows up to the bound, and the two readings of a text without
# blanks.
MAX_READ = 3 * MIN_READ_CHARACTERS
LENGTH = 16 * 2**20


class CountingTokenizer:
    """The library's tokenizer, which counts the characters that it is given."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.characters = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode(self, text: str, pair: str | None = None, **options: Any) -> Any:
        self.characters += len(text) + len(pair or "")
        return self._tokenizer.encode(text, pair, **options)

    def encode_batch(self, texts: list[str], **options: Any) -> Any:
        self.characters += sum(map(len, texts))
        return self._tokenizer.encode_batch(texts, **options)

    def encode_batch_fast(self, texts: list[str], **options: Any) -> Any:
        self.characters += sum(map(len, texts))
        return self._tokenizer.encode_batch_fast(texts, **options)


def counting(max_length: int = 256) -> tuple[CountingTokenizer, TextTokenizer]:
    tokenizer = CountingTokenizer(Tokenizer.from_file(str(MINILM / "tokenizer.json")))
    built = TextTokenizer(cast(Tokenizer, tokenizer), max_length, tokenizer.get_vocab_size())
    tokenizer.characters = 0
    return tokenizer, built


ENDLESS = {
    "letters": "x" * LENGTH,
    "marks": "." * LENGTH,
    "blanks": "a" + " " * (LENGTH - 1),
    "accents": "é" * LENGTH,
    "words": ("hello world " * (LENGTH // 12 + 1))[:LENGTH],
    "ideographs": "学" * LENGTH,
}


def refusal_of(call: Callable[[], object]) -> str:
    """The message of a refusal; empty where there is none."""
    try:
        call()
    except InputTooLong as error:
        return error.message
    return ""


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize("name", ENDLESS)
def test_of_16_million_characters_a_bounded_part_is_read(name: str, side: Side, truncate: bool) -> None:
    counter, tokenizer = counting()
    refusal = refusal_of(lambda: tokenizer.encode([ENDLESS[name]], "", TruncationRules(truncate, side)))
    assert counter.characters <= MAX_READ
    has_tokens = name in ("words", "marks", "ideographs")
    assert refusal.startswith("" if has_tokens and truncate else "input 0 has ")
    assert bool(refusal) != (has_tokens and truncate)


@pytest.mark.parametrize("name", ["letters", "marks"])
def test_so_it_is_for_pairs_and_for_texts_that_are_cut_to_a_budget_first(name: str) -> None:
    counter, tokenizer = counting(255)
    text, message = ENDLESS[name], "a text has 16777216 characters" if name == "letters" else ""
    for first in ("hello", text):
        counter.characters = 0
        pairs = [(first, text)]
        refusal = refusal_of(partial(tokenizer.encode_pairs, pairs, TruncationRules(True)))
        assert refusal.startswith(message)
        assert counter.characters <= 2 * MAX_READ
    counter.characters = 0
    assert refusal_of(lambda: tokenizer.shorten([text], 1_000_000)).startswith(message)
    assert counter.characters <= MAX_READ


@cache
def _text_without_blanks(name: str) -> str:
    random.seed(5)
    length = MIN_READ_CHARACTERS + 70_000
    if name == "random letters":
        return "".join(random.choices(string.ascii_letters, k=length))
    if name == "random marks":
        return "".join(random.choices(string.punctuation, k=length))
    script = SCRIPTS[name].replace(" ", "")
    return (script * (length // len(script) + 1))[:length]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["minilm", "modernbert", "xlm-roberta", "qwen", "gemma"])
@pytest.mark.parametrize("name", ["random letters", "random marks", "chinese", "thai"])
@pytest.mark.parametrize("side", SIDES)
def test_a_long_text_without_blanks_has_the_ids_of_the_whole_text_or_is_refused(
    kind: str, name: str, side: Side
) -> None:
    text = _text_without_blanks(name)
    tokenizer = Tokenizer.from_str(saved(kind))
    tokenizer.no_padding()
    tokenizer.enable_truncation(24, direction=side)
    want = tokenizer.encode(text).ids
    encoded: list[list[int]] = []
    rules = TruncationRules(True, side)
    refusal = refusal_of(
        lambda: encoded.extend(ids.tolist() for ids in ours(kind, 24).encode([text], "", rules))
    )
    assert encoded == ([] if refusal else [want])
    assert bool(refusal) == (len(want) < 24), "it is refused where it has fewer tokens"


def test_a_text_of_ordinary_words_is_cut_after_a_window_as_transformers_cuts_it() -> None:
    counter, tokenizer = counting()
    text = ENDLESS["words"][:300_000]
    (ids,) = tokenizer.encode([text], "", TruncationRules(True))
    want = AutoTokenizer.from_pretrained(MINILM)(text, truncation=True, max_length=256)["input_ids"]
    assert ids.tolist() == want
    assert counter.characters < 10_000
