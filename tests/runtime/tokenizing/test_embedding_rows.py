"""Tokens without a row of the model's word embeddings: words refuse the start, special tokens refuse a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tokenizers import Tokenizer, processors

from embedserve_runtime.errors import InvalidInput, ModelInvalid
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.heads.description import Task
from embedserve_runtime.tokenizing import TextTokenizer, TruncationRules
from embedserve_runtime.tokenizing.word_tokenizer import MIN_FLAT_TEXTS
from tests.support.tiny_models import (
    CLS,
    SEP,
    VOCABULARY,
    build_card_with_tokenizer,
    build_classifier_card,
    build_tiny_wordpiece,
)

NUM_TOKENS = len(VOCABULARY)
CUT = TruncationRules(truncate=True)
PAIR = [("hello", "a vector")]


def with_tokens(words: Sequence[str] = (), special: Sequence[str] = ()) -> Tokenizer:
    """A tokenizer with tokens behind the vocabulary that the model has rows for."""
    tokenizer = build_tiny_wordpiece()
    tokenizer.add_special_tokens([*special])
    tokenizer.add_tokens([*words])
    return tokenizer


def card_of_rows(rows: int, tokenizer: Tokenizer | None = None) -> ModelCard:
    card = build_card_with_tokenizer(tokenizer or build_tiny_wordpiece(), lowercase=False)
    embeddings = replace(card.encoder.embeddings, vocabulary=rows)
    return replace(card, encoder=replace(card.encoder, embeddings=embeddings))


def ending_with(token: str) -> Tokenizer:
    tokenizer = with_tokens(special=[token])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"[CLS] $A {token}",
        pair=f"[CLS] $A [SEP] $B {token}",
        special_tokens=[("[CLS]", CLS), ("[SEP]", SEP), (token, NUM_TOKENS)],
    )
    return tokenizer


REFUSED: dict[str, tuple[ModelCard, str]] = {
    "words of the vocabulary": (
        card_of_rows(NUM_TOKENS - 3),
        rf"ids up to {NUM_TOKENS - 1}, .* word embeddings for {NUM_TOKENS - 3} tokens",
    ),
    "a word that was added": (
        card_of_rows(NUM_TOKENS, with_tokens(words=["embedding"])),
        f"ids up to {NUM_TOKENS}, 'embedding' among them",
    ),
    "a special token that ends every text": (
        card_of_rows(NUM_TOKENS, ending_with("[END]")),
        r"'\[END\]' among them",
    ),
}


@pytest.mark.parametrize(("card", "message"), REFUSED.values(), ids=REFUSED)
def test_a_tokenizer_of_another_model_is_refused_at_start(card: ModelCard, message: str) -> None:
    with pytest.raises(ModelInvalid, match=message):
        TextTokenizer.from_card(card)


def test_a_special_token_of_every_pair_is_refused_at_start_where_pairs_are_ranked() -> None:
    tokenizer = with_tokens(special=["[NEXT]"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [NEXT] $B [SEP]",
        special_tokens=[("[CLS]", CLS), ("[SEP]", SEP), ("[NEXT]", NUM_TOKENS)],
    )
    card = card_of_rows(NUM_TOKENS, tokenizer)
    TextTokenizer.from_card(card)
    reranker = replace(card, task=Task.RERANK, head=build_classifier_card("LABEL_0").head)
    with pytest.raises(ModelInvalid, match=r"'\[NEXT\]' among them"):
        TextTokenizer.from_card(reranker)


@pytest.mark.parametrize("text", ["[EXTRA]", "hello [EXTRA] world", "a vector [EXTRA]"])
def test_a_special_token_that_no_text_needs_refuses_only_a_text_that_writes_it_out(text: str) -> None:
    built = with_tokens(special=["[EXTRA]"], words=["<image_soft_token>"])
    tokenizer = TextTokenizer.from_card(card_of_rows(NUM_TOKENS, built))
    (ids,) = tokenizer.encode(["hello"], "", CUT)
    assert ids.tolist() == [CLS, VOCABULARY.index("hello"), SEP]
    message = (
        f"input 1 writes out the special token {NUM_TOKENS}, and the model has word embeddings for "
        f"{NUM_TOKENS} tokens"
    )
    for each_tokenizer in (tokenizer, tokenizer.with_max_length(16)):
        # Few texts are arrays of their own, many are one.
        for further in ([], ["hello"] * MIN_FLAT_TEXTS):
            with pytest.raises(InvalidInput, match=message):
                each_tokenizer.encode(["hello", text, *further], "", CUT)
        with pytest.raises(InvalidInput, match=message):
            each_tokenizer.encode_pairs([*PAIR, ("hello", text)], CUT)


def test_rows_that_no_token_has_are_no_fault() -> None:
    tokenizer = TextTokenizer.from_card(card_of_rows(NUM_TOKENS + 7))
    (ids,) = tokenizer.encode(["hello"], "", CUT)
    assert ids.tolist() == [CLS, VOCABULARY.index("hello"), SEP]
