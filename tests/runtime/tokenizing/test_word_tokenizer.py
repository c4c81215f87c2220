"""Ids that were put together from words are those that the library gives to the whole text."""

from __future__ import annotations

import json
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from embedserve_runtime.tokenizing import word_tokenizer
from embedserve_runtime.tokenizing.word_tokenizer import WordTokenizer
from tests.runtime.tokenizing.kinds import ODD, SCRIPTS, saved

BY_WORDS = ["minilm", "bert", "xlm-roberta"]
WHOLE = ["roberta", "modernbert", "deberta", "qwen", "gemma"]


def words_of(tokenizer: Tokenizer) -> WordTokenizer | None:
    return WordTokenizer.build(tokenizer, json.loads(tokenizer.to_str()), compiled=False)


@cache
def known(kind: str) -> tuple[WordTokenizer, Tokenizer]:
    tokenizer = Tokenizer.from_str(saved(kind))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    found = words_of(tokenizer)
    assert found is not None
    return found, tokenizer


TEXTS = st.lists(
    st.one_of(
        st.sampled_from(
            [*SCRIPTS.values(), "[SEP]", "a[MASK]b", "<s>", " ", "  ", "\n", "\t", "\r\n", "\x0b", "\x1c"]
        ),
        st.sampled_from(["word, ", "don't ", "(see: ", "e-mail@host.org ", "1,000.5% ", "a_b ", "x" * 120]),
        st.sampled_from(
            [f" {mark}" for mark in ("\u0301", "\u200d", "\u0600", "\u00ad", "\u3000", "\u2028", "\xa0")]
        ),
        st.text(max_size=6),
    ),
    max_size=8,
).map("".join)


@pytest.mark.parametrize("kind", BY_WORDS)
@settings(max_examples=150, deadline=None)
@given(text=TEXTS)
def test_ids_are_those_of_the_whole_text_when_words_are_new_and_when_they_are_known(
    kind: str, text: str
) -> None:
    text = text.encode("utf-8", "ignore").decode()
    table, tokenizer = known(kind)
    want = tokenizer.encode(text, add_special_tokens=False).ids
    for _ in range(2):
        got = table.encode(text)
        assert got is None or got.tolist() == want


@pytest.mark.parametrize("kind", BY_WORDS)
@pytest.mark.parametrize("script", ["english", "german", "russian", "greek", "hebrew", "chinese", "korean"])
def test_plain_texts_are_not_left_to_the_library(kind: str, script: str) -> None:
    table, tokenizer = known(kind)
    got = table.encode(SCRIPTS[script])
    assert got is not None
    assert got.tolist() == tokenizer.encode(SCRIPTS[script], add_special_tokens=False).ids


@pytest.mark.parametrize("text", [ODD, SCRIPTS["emoji"], SCRIPTS["hindi"], "half \ud83d"])
def test_texts_with_marks_joiners_or_surrogates_are_left_to_the_library(text: str) -> None:
    assert known("minilm")[0].encode(text) is None


@pytest.mark.parametrize("kind", WHOLE)
def test_tokenizers_whose_blanks_belong_to_the_words_are_not_read_by_words(kind: str) -> None:
    assert words_of(Tokenizer.from_str(saved(kind))) is None


def wordpiece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "b": 2, "ab": 3}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def test_a_tokenizer_that_takes_blanks_away_is_not_read_by_words() -> None:
    gluing = wordpiece()
    gluing.normalizer = normalizers.Replace(" ", "")
    assert words_of(wordpiece()) is not None
    assert words_of(gluing) is None


def test_nor_one_that_looks_across_blanks() -> None:
    looking = wordpiece()
    looking.normalizer = normalizers.Replace(Regex("a b"), "ab")
    assert words_of(looking) is None


def test_nor_one_with_a_token_that_has_a_blank_inside() -> None:
    spaced = wordpiece()
    spaced.add_tokens([AddedToken("a b", normalized=False)])
    assert words_of(spaced) is None


def test_a_word_is_asked_for_once_unless_as_many_others_as_are_kept_were_met_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(word_tokenizer, "MAX_WORDS", 2)
    asked = []

    def encode(word: str) -> list[int]:
        asked.append(word)
        return [len(word)]

    table = WordTokenizer(encode)
    for text in ("a bb a", "bb a", "ccc", "a", "dddd eeeee ffffff", "ccc"):
        ids = table.encode(text)
        assert ids is not None
        assert ids.tolist() == [len(word) for word in text.split()]
    assert asked == ["a", "bb", "ccc", "dddd", "eeeee", "ffffff", "ccc"]


def test_a_very_long_word_is_not_kept() -> None:
    asked: list[str] = []

    def encode(word: str) -> list[int]:
        asked.append(word)
        return []

    table = WordTokenizer(encode)
    for _ in range(2):
        table.encode("x" * 1_000)
    assert len(asked) == 2
