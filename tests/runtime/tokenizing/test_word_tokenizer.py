"""Ids that were put together from words are those that the library gives to the whole text."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from benchmarks.docstrings import paragraphs
from embedserve_runtime.forward.batch import FlatTokens
from embedserve_runtime.tokenizing import TextTokenizer, TruncationRules, word_tokenizer
from embedserve_runtime.tokenizing.table_texts import TableTexts
from embedserve_runtime.tokenizing.word_tokenizer import MIN_FLAT_TEXTS, WordTokenizer
from tests.runtime.tokenizing import word_kinds
from tests.runtime.tokenizing.kinds import ODD, SCRIPTS, saved
from tests.support.models import minilm_folder, model2vec_folder

BY_WORDS = ["minilm", "bert", "xlm-roberta"]
WHOLE = ["roberta", "modernbert", "deberta", "qwen", "gemma"]


def words_of(tokenizer: Tokenizer) -> WordTokenizer | None:
    return WordTokenizer.build(tokenizer, json.loads(tokenizer.to_str()))


@cache
def known(kind: str) -> tuple[WordTokenizer, Tokenizer]:
    tokenizer = Tokenizer.from_str(saved(kind))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    words = words_of(tokenizer)
    assert words is not None
    return words, tokenizer


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


REQUEST = st.lists(
    st.lists(
        st.one_of(
            word_kinds.WORD,
            st.text("ab", min_size=1, max_size=40),
            st.text("aáÁＡｂ½ǆ的가а\u00a0\u00ad\u3000\x01▁<pdÅ", min_size=1, max_size=8),
            st.sampled_from([" ", "\n", "\t ", "\r\n", "\x00", "\x0b", "\x1c", "\u2028", "\U0001f600"]),
            st.sampled_from([*SCRIPTS.values()]),
        )
    ).map(" ".join),
    min_size=1,
    max_size=2 * MIN_FLAT_TEXTS,
)


def check_texts(words: WordTokenizer, tokenizer: Tokenizer, texts: list[str]) -> int:
    """Compare the ids of each text with the library's; return how many texts are left to it."""
    token_ids = words.encode_all(texts, b"", b"")
    for text, ids in zip(texts, token_ids, strict=True):
        assert ids is None or ids.tolist() == tokenizer.encode(text, add_special_tokens=False).ids, text
        assert ids is not None or not text.isascii()
    return sum(ids is None for ids in token_ids)


@pytest.mark.parametrize("kind", word_kinds.KINDS)
def test_ids_of_a_request_are_those_of_each_text(kind: str) -> None:
    tokenizer = word_kinds.KINDS[kind]()
    tokenizer.no_padding()
    tokenizer.no_truncation()
    words = words_of(tokenizer)
    assert words is not None

    @settings(max_examples=80, deadline=None)
    @given(texts=REQUEST)
    def as_the_tokenizer(texts: list[str]) -> None:
        check_texts(words, tokenizer, texts)

    as_the_tokenizer()


@cache
def pretrained(folder: Callable[[], Path]) -> tuple[WordTokenizer, Tokenizer]:
    tokenizer = Tokenizer.from_file(str(folder() / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    words = words_of(tokenizer)
    assert words is not None
    return words, tokenizer


@pytest.mark.thorough
@pytest.mark.parametrize("folder", [minilm_folder, model2vec_folder], ids=["WordPiece", "Unigram"])
def test_so_are_those_of_all_paragraphs_of_the_standard_library(folder: Callable[[], Path]) -> None:
    texts = paragraphs()
    assert check_texts(*pretrained(folder), texts) < len(texts) / 1_000


@pytest.mark.thorough
@pytest.mark.parametrize("folder", [minilm_folder, model2vec_folder], ids=["WordPiece", "Unigram"])
def test_so_are_those_of_every_character_of_the_first_plane(folder: Callable[[], Path]) -> None:
    characters = [chr(code) for code in range(0x10000) if not 0xD800 <= code < 0xE000]
    check_texts(*pretrained(folder), [f"a{character}b {character}{character}" for character in characters])


@pytest.mark.parametrize("count", [0, MIN_FLAT_TEXTS], ids=["few", "many"])
def test_special_tokens_stand_around_each_text_and_the_arrays_can_be_written_where_there_are_many(
    count: int,
) -> None:
    words = words_of(word_kinds.KINDS["small letters"]())
    assert words is not None
    head, tail = (np.array([number], dtype=np.int32).tobytes() for number in (7, 8))
    token_ids = words.encode_all(["a ab", " ", "[UNK]", "b", *["a"] * count], head, tail)
    want = [[7, 1, 3, 8], [7, 8], [7, 0, 8], [7, 2, 8], *[[7, 1, 8]] * count]
    assert [ids.tolist() for ids in token_ids if ids is not None] == want
    assert not count or (isinstance(token_ids, FlatTokens) and token_ids.token_ids.flags.writeable)


def test_texts_of_a_request_that_are_long_or_left_to_the_library_are_read_as_they_are_alone() -> None:
    texts = ["a ab b. " * count for count in (1, 30, 3)] + ["b café", " ", "ab", "[UNK] a", "e\u0301"] * 4
    table = TableTexts(empty_text_id=16)
    tokenizer = TextTokenizer(word_kinds.KINDS["small letters"](), 20, 16, table=table)
    rules = TruncationRules(truncate=True)
    together = tokenizer.encode(texts, "a ", rules)
    assert [ids.tolist() for ids in together] == [
        ids.tolist() for text in texts for ids in tokenizer.encode([text], "a ", rules)
    ]


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
    encoded_words = []

    def encode(word: str) -> list[int]:
        encoded_words.append(word)
        return [len(word)]

    table = WordTokenizer(encode)
    for text in ("a bb a", "bb a", "ccc", "a", "dddd eeeee ffffff", "ccc"):
        ids = table.encode(text)
        assert ids is not None
        assert ids.tolist() == [len(word) for word in text.split()]
    assert encoded_words == ["a", "bb", "ccc", "dddd", "eeeee", "ffffff", "ccc"]


def test_a_very_long_word_is_not_kept() -> None:
    encoded_words: list[str] = []

    def encode(word: str) -> list[int]:
        encoded_words.append(word)
        return []

    table = WordTokenizer(encode)
    for _ in range(2):
        table.encode("x" * 1_000)
    assert len(encoded_words) == 2
