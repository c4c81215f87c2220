"""Ids of a word, asked of the model alone, are those that the whole tokenizer gives it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from tokenizers import Tokenizer

from embedserve_runtime.tokenizing.spelling import Spell, read_surroundings, spell_by_model
from tests.runtime.tokenizing.word_kinds import KINDS, OTHERS, WORD


def spell_of(tokenizer: Tokenizer) -> Spell | None:
    tokenizer.no_padding()
    tokenizer.no_truncation()
    layout = json.loads(tokenizer.to_str())
    around = read_surroundings(tokenizer, layout)
    return None if around is None else spell_by_model(tokenizer, layout, around)


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
