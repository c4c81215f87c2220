"""Ids of a word, asked of the model alone, are those that the whole tokenizer gives it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from embedserve_runtime.tokenizing.spelling import Spell, read_surroundings, spell_by_model
from tests.runtime.tokenizing.kinds import saved

PIECES = [
    "[UNK]",
    "a",
    "b",
    "ab",
    "##a",
    "##b",
    "##ab",
    "A",
    "aab",
    "_",
    ".",
    "1",
    "##1",
    "a.b",
    "a_b",
    "café",
]
METASPACE = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])


def wordpiece(
    normalizer: normalizers.Normalizer | None = None,
    pre_tokenizer: pre_tokenizers.PreTokenizer | None = None,
) -> Tokenizer:
    numbered = {piece: number for number, piece in enumerate(PIECES)}
    tokenizer = Tokenizer(models.WordPiece(numbered, unk_token="[UNK]", max_input_chars_per_word=9))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer or pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(["[UNK]"])
    return tokenizer


def unigram(pre_tokenizer: pre_tokenizers.PreTokenizer) -> Tokenizer:
    scored = [("<unk>", 0.0), *((piece, -float(i % 4)) for i, piece in enumerate(["▁", "▁a", *PIECES[1:]]))]
    tokenizer = Tokenizer(models.Unigram(scored, unk_id=0, byte_fallback=False))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizer
    return tokenizer


def with_added(content: str, *, normalized: bool) -> Tokenizer:
    tokenizer = wordpiece(normalizers.BertNormalizer())
    tokenizer.add_tokens([AddedToken(content, normalized=normalized)])
    return tokenizer


KINDS: Mapping[str, Callable[[], Tokenizer]] = {
    "all-MiniLM-L6-v2": lambda: Tokenizer.from_str(saved("minilm")),
    "XLM-RoBERTa": lambda: Tokenizer.from_str(saved("xlm-roberta")),
    "small letters": lambda: wordpiece(normalizers.BertNormalizer()),
    "letters as they are": lambda: wordpiece(normalizers.BertNormalizer(lowercase=False)),
    "no normalizer": wordpiece,
    "words with underscores": lambda: wordpiece(pre_tokenizer=pre_tokenizers.Whitespace()),
    "whole words": lambda: wordpiece(pre_tokenizer=pre_tokenizers.WhitespaceSplit()),
    "Unigram behind a mark": lambda: unigram(METASPACE),
    "Unigram of whole words": lambda: unigram(pre_tokenizers.WhitespaceSplit()),
    "an added token in capitals": lambda: with_added("AB", normalized=False),
    "an added token that is normalized": lambda: with_added("Áb", normalized=True),
}
OTHERS: Mapping[str, Callable[[], Tokenizer]] = {
    "characters are replaced": lambda: wordpiece(normalizers.Replace("ab", "b")),
    "characters are taken away": lambda: wordpiece(normalizers.Replace(Regex("b"), "")),
    "digits are split": lambda: wordpiece(
        pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Digits()])
    ),
    "the first word is another": lambda: unigram(
        pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="first")]
        )
    ),
    "an added token of which the normalizer leaves nothing": lambda: with_added("\u0301", normalized=True),
}


def spell_of(tokenizer: Tokenizer) -> Spell | None:
    tokenizer.no_padding()
    tokenizer.no_truncation()
    layout = json.loads(tokenizer.to_str())
    around = read_surroundings(tokenizer, layout)
    return None if around is None else spell_by_model(tokenizer, layout, around)


WORD = st.one_of(
    st.text("abAB1._#é[]", min_size=1, max_size=12),
    st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=8),
    st.text(st.characters(exclude_categories=["Cs", "Z"]), min_size=1, max_size=6),
    st.sampled_from(
        ["[UNK]", "a[UNK]b", "AB", "ab", "a\x0bb", "a\x1fb", "a\x7fb", "atomically.", "(self._sign)"]
    ),
)


@pytest.mark.parametrize("kind", KINDS)
def test_words_are_spelled_as_the_tokenizer_does(kind: str) -> None:
    tokenizer = KINDS[kind]()
    spell = spell_of(tokenizer)
    assert spell is not None

    @settings(max_examples=80, deadline=None)
    @given(word=WORD)
    def as_the_tokenizer(word: str) -> None:
        assert spell(word) == tokenizer.encode(word, add_special_tokens=False).ids

    as_the_tokenizer()


@pytest.mark.parametrize("kind", OTHERS)
def test_where_the_steps_around_the_model_are_not_known_it_is_not_asked_alone(kind: str) -> None:
    assert spell_of(OTHERS[kind]()) is None
