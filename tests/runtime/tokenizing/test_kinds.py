"""Single texts, their prompts and their offsets, for every kind of tokenizer, against independent tokenizers."""

from __future__ import annotations

from pathlib import Path

import pytest
from sentence_transformers.base.modules import Transformer
from tokenizers import Tokenizer, models, pre_tokenizers

from embedserve_runtime.tokenizing import (
    MAX_SEQUENTIAL_CHARACTERS,
    Side,
    TextTokenizer,
    Token,
    TruncationRules,
)
from tests.runtime.tokenizing import independent
from tests.runtime.tokenizing.kinds import KINDS, ODD, SCRIPTS, ours, saved, transformers_of
from tests.support.models import tiny_bert

CUT = TruncationRules(truncate=True)
CUT_LEFT = TruncationRules(truncate=True, side="left")
SIDES: list[Side] = ["right", "left"]
TEXTS = [*SCRIPTS.values(), "fox", " [SEP] </s> the  <s> ", SCRIPTS["english"] * 5]
PROMPTS = [
    "query: ",
    "query:",
    "Represent the sentence",
    "</s>",
    "fox </s>",
    "найди ",
    "的",
    "word " * 60,
    " ",
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("max_length", [4, 17, 512])
def test_texts_equal_those_of_an_independent_tokenizer(kind: str, side: Side, max_length: int) -> None:
    # The WordPiece of transformers in Python drops unassigned code points. Google's code and the library keep them.
    odd = ODD.removesuffix("\U0010ffff") if kind in {"minilm", "bert"} else ODD
    texts = [*TEXTS, odd]
    want = [independent.encode(kind, text, max_length, side) for text in texts]
    got = ours(kind, max_length).encode(texts, "", TruncationRules(True, side))
    assert [ids.tolist() for ids in got] == want


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_has_as_many_tokens_as_sentence_transformers_leaves_out_of_pooling(
    tmp_path: Path, kind: str
) -> None:
    size = Tokenizer.from_str(saved(kind)).get_vocab_size()
    tiny_bert(tmp_path, vocab_size=size, num_hidden_layers=1)
    transformers_of(kind, "right").save_pretrained(tmp_path)
    reference = Transformer(str(tmp_path), max_seq_length=30)
    want = {prompt: reference.preprocess(["fox"], prompt=prompt)["prompt_length"] for prompt in PROMPTS}
    assert {prompt: ours(kind, 30).count_prompt_tokens(prompt) for prompt in PROMPTS} == want


def test_a_prompt_without_any_token_leaves_nothing_out() -> None:
    words = Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    assert [TextTokenizer(words, 8, 2).count_prompt_tokens(prompt) for prompt in ("", "  ", "a a")] == [
        0,
        0,
        2,
    ]


def of_text(tokens: list[Token]) -> list[Token]:
    return [token for token in tokens if not token.special]


# Normalizers that move or join characters make a token's offsets coarser, never another text's.
OFFSET_CASES = [
    pytest.param("minilm", SCRIPTS["german"] * 8, id="a word piece model"),
    pytest.param("minilm", SCRIPTS["chinese"] * 300, id="a text read from its end"),
    pytest.param("minilm", SCRIPTS["emoji"] * 200, id="code points beyond two bytes, read from the end"),
    pytest.param("roberta", SCRIPTS["english"] * 8, id="a byte-level model"),
    pytest.param("xlm-roberta", SCRIPTS["russian"] * 8, id="a unigram model"),
    pytest.param("qwen", SCRIPTS["korean"] * 8, id="a model without a first special token"),
]


@pytest.mark.parametrize(("kind", "text"), OFFSET_CASES)
@pytest.mark.parametrize("prompt", ["", "query: "], ids=["no prompt", "prompt"])
def test_offsets_in_a_text_cut_on_the_left_are_those_of_the_whole_text(
    kind: str, text: str, prompt: str
) -> None:
    text += "the last words"
    tokenizer = ours(kind, 40)
    (cut,) = tokenizer.locate([text], prompt, CUT_LEFT)
    (whole,) = ours(kind, 40_000).locate([text], prompt, CUT_LEFT)
    last = of_text(cut)[-20:]
    assert last == of_text(whole)[-20:]
    assert all((prompt + text)[token.start : token.stop] == token.text for token in of_text(cut))
    (ids,) = tokenizer.encode([text], prompt, CUT_LEFT)
    assert [token.id for token in cut] == ids.tolist()
    assert last[-1].stop == len(prompt + text)


def test_the_texts_of_a_text_cut_on_the_left_are_its_prompt_and_its_last_words() -> None:
    text = "the fox " * MAX_SEQUENTIAL_CHARACTERS + "sleeps at night"
    (tokens,) = ours("minilm", 9).locate([text], "query: ", CUT_LEFT)
    assert [token.text for token in tokens] == [
        "[CLS]",
        *("query", ":"),
        *("the", "fox"),
        *("sleeps", "at", "night"),
        "[SEP]",
    ]
    start = 7 + len(text) - len("the fox sleeps at night")
    offsets = [(token.start, token.stop) for token in tokens if token.start is not None]
    assert offsets[:4] == [(0, 5), (5, 6), (start, start + 3), (start + 4, start + 7)]
