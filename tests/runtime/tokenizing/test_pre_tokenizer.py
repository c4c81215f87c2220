"""Ids of a word, asked of the model alone, are those that the whole tokenizer gives it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from tokenizers import Tokenizer

from embedserve_runtime.tokenizing.pre_tokenizer import (
    WordEncoder,
    build_word_encoder,
    read_pre_tokenizer_settings,
)
from tests.runtime.tokenizing.word_kinds import KINDS, OTHERS, WORD


def word_encoder_of(tokenizer: Tokenizer) -> WordEncoder | None:
    tokenizer.no_padding()
    tokenizer.no_truncation()
    layout = json.loads(tokenizer.to_str())
    settings = read_pre_tokenizer_settings(tokenizer, layout)
    return None if settings is None else build_word_encoder(tokenizer, layout, settings)


@pytest.mark.parametrize("kind", KINDS)
def test_words_are_spelled_as_the_tokenizer_does(kind: str) -> None:
    tokenizer = KINDS[kind]()
    encode_word = word_encoder_of(tokenizer)
    assert encode_word is not None

    @settings(max_examples=80, deadline=None)
    @given(word=WORD)
    def as_the_tokenizer(word: str) -> None:
        assert encode_word(word) == tokenizer.encode(word, add_special_tokens=False).ids

    as_the_tokenizer()


@pytest.mark.parametrize("kind", OTHERS)
def test_where_the_steps_around_the_model_are_not_known_it_is_not_asked_alone(kind: str) -> None:
    assert word_encoder_of(OTHERS[kind]()) is None
