"""Pairs must be what transformers' fast tokenizers make of them, cut or not, with the types of the tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers import CrossEncoder
from tokenizers import processors
from transformers import BertConfig, BertForSequenceClassification

from embedserve_runtime.errors import (
    BatchTooLarge,
    ConfigError,
    EmptyInput,
    InputTooLong,
    InvalidInput,
    ModelInvalid,
)
from embedserve_runtime.forward.batch import Tokens, TokenSequence
from embedserve_runtime.tokenizing import (
    MAX_SEQUENTIAL_CHARACTERS,
    MAX_SLICE_TEXTS,
    Side,
    TextTokenizer,
    TruncationRules,
)
from embedserve_runtime.tokenizing.truncation import truncate_second_first
from tests.runtime.tokenizing.kinds import KINDS, ODD, SCRIPTS, ours, transformers_of
from tests.support.models import tiny
from tests.support.tiny_models import VOCABULARY, build_tiny_wordpiece

REFUSE = TruncationRules(truncate=False)
CUT = TruncationRules(truncate=True)
SIDES: list[Side] = ["right", "left"]
ENGLISH, RUSSIAN = SCRIPTS["english"], SCRIPTS["russian"]

PAIRS = [
    *zip(SCRIPTS.values(), reversed(SCRIPTS.values()), strict=True),
    (ODD, ENGLISH),
    (ENGLISH, ODD),
    ("fox", ""),
    ("", "fox"),
    (ENGLISH * 3, ""),
    ("fox", ENGLISH * 4),
    (ENGLISH * 4, "fox"),
    (ENGLISH * 2, ENGLISH * 2),
    ("  the [SEP] </s> fox ", "\n\n<s> dog  "),
]


def plain(sequences: list[Tokens]) -> list[tuple[list[int], list[int]]]:
    """Ids and types as lists."""
    listed = []
    for sequence in sequences:
        assert isinstance(sequence, TokenSequence)
        assert sequence.types is not None
        listed.append((sequence.ids.tolist(), sequence.types.tolist()))
    return listed


def wanted(
    kind: str, pairs: list[tuple[str, str]], max_length: int, side: Side
) -> list[tuple[list[int], list[int]]]:
    encoded = transformers_of(kind, side)(
        [first for first, _ in pairs],
        [second for _, second in pairs],
        truncation=True,
        max_length=max_length,
    )
    return list(zip(encoded["input_ids"], encoded["token_type_ids"], strict=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("max_length", [12, 13, 30, 512])
def test_pairs_equal_those_of_transformers(kind: str, side: Side, max_length: int) -> None:
    got = ours(kind, max_length).encode_pairs(PAIRS, TruncationRules(True, side))
    assert plain(got) == wanted(kind, PAIRS, max_length, side)


def far(script: str, characters: int = MAX_SEQUENTIAL_CHARACTERS + 500) -> str:
    """A text beyond the window. Not much beyond: where both texts of a pair are cut, the oracle makes every
    combination of all that it cut off.
    """
    return (SCRIPTS[script] * characters)[:characters]


FAR_PAIRS = [
    pytest.param("fox", far("english"), id="document"),
    pytest.param(far("russian"), "fox", id="query"),
    pytest.param(far("english"), far("english"), id="both, equally long"),
    pytest.param(far("english") + " fox", far("english"), id="both, the query longer"),
    pytest.param(far("english"), far("english") + " fox", id="both, the document longer"),
    pytest.param(far("english"), far("english", 1_500), id="a document that does not fit and is read whole"),
    pytest.param("x" * len(far("thai")), "y", id="a single word"),
    pytest.param(far("chinese"), "fox", id="a script without blanks"),
]


@pytest.mark.parametrize(("first", "second"), FAR_PAIRS)
@pytest.mark.parametrize("kind", ["minilm", "roberta", "xlm-roberta", "qwen", "gemma"])
@pytest.mark.parametrize("side", SIDES)
def test_very_long_texts_are_cut_as_if_they_had_been_read_whole(
    kind: str, side: Side, first: str, second: str
) -> None:
    for max_length in (254, 255):
        got = ours(kind, max_length).encode_pairs([(first, second)], TruncationRules(True, side))
        assert plain(got) == wanted(kind, [(first, second)], max_length, side)


TEXTS = st.one_of(
    st.text(max_size=60),
    st.lists(st.sampled_from([*SCRIPTS.values(), " ", "\n", "[SEP]", "</s>"]), max_size=4).map("".join),
).map(lambda text: text.encode("utf-8", "ignore").decode()[:120])


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(list(KINDS)),
    side=st.sampled_from(SIDES),
    max_length=st.integers(12, 40),
    first=TEXTS,
    second=TEXTS,
)
def test_any_two_texts_give_the_ids_of_transformers(
    kind: str, side: Side, max_length: int, first: str, second: str
) -> None:
    pairs = [(first or "a", second)]
    want = wanted(kind, pairs, max_length, side)
    if not want[0][0]:
        with pytest.raises(EmptyInput, match="input 0 has no tokens"):
            ours(kind, max_length).encode_pairs(pairs, TruncationRules(True, side))
    else:
        assert plain(ours(kind, max_length).encode_pairs(pairs, TruncationRules(True, side))) == want


@pytest.mark.parametrize("prompt", [None, "search: "], ids=["no prompt", "prompt"])
def test_pairs_equal_those_of_a_cross_encoder(tmp_path: Path, prompt: str | None) -> None:
    config = BertConfig(
        hidden_size=12, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, num_labels=1
    )
    tiny(tmp_path, BertForSequenceClassification, config)
    transformers_of("minilm", "right").save_pretrained(tmp_path)
    encoder = CrossEncoder(str(tmp_path), device="cpu", max_length=40)
    features = encoder.preprocess([list(pair) for pair in PAIRS], prompt=prompt)
    mask = features["attention_mask"].bool()
    want = [
        (ids[real].tolist(), types[real].tolist())
        for ids, types, real in zip(features["input_ids"], features["token_type_ids"], mask, strict=True)
    ]
    got = ours("minilm", 40).encode_pairs(PAIRS, CUT, prompt=prompt or "")
    assert plain(got) == want


def test_an_encoder_without_token_types_gets_plain_ids() -> None:
    typed = ours("minilm", 32).encode_pairs(PAIRS, CUT)
    untyped = ours("minilm", 32, pair_types=False).encode_pairs(PAIRS, CUT)
    assert [ids for ids, _ in plain(typed)] == [
        sequence.tolist() for sequence in untyped if not isinstance(sequence, TokenSequence)
    ]


def test_many_documents_of_one_query_each_get_the_ids_they_have_alone() -> None:
    pairs = [("the fox", f"{ENGLISH} {index}") for index in range(MAX_SLICE_TEXTS + 3)]
    tokenizer = ours("minilm", 16)
    alone = [tokenizer.encode_pairs([pair], CUT)[0] for pair in pairs]
    assert plain(tokenizer.encode_pairs(pairs, CUT)) == plain(alone)


@pytest.mark.parametrize(
    ("second", "want_in_message"),
    [
        pytest.param("dog " * 28, "input 1 has 33 tokens and the model takes at most 32", id="one too many"),
        pytest.param("dog " * 5_000, "input 1 has at least", id="far too many are not all counted"),
    ],
)
def test_too_long_without_truncation_names_input_tokens_and_limit(second: str, want_in_message: str) -> None:
    with pytest.raises(InputTooLong, match=want_in_message):
        ours("minilm", 32).encode_pairs([("fox", "dog"), ("the fox", second)], REFUSE)


def test_exactly_the_limit_is_not_too_long() -> None:
    (pair,) = ours("minilm", 32).encode_pairs([("the fox", "dog " * 27)], REFUSE)
    assert len(pair) == 32


def test_a_pair_of_two_empty_texts_is_named_by_its_index() -> None:
    with pytest.raises(EmptyInput, match="input 1 is empty"):
        ours("minilm", 32).encode_pairs([("fox", ""), ("", "")], CUT)


def test_a_pair_that_is_not_valid_unicode_is_refused() -> None:
    with pytest.raises(InvalidInput, match="not valid Unicode"):
        ours("minilm", 32).encode_pairs([("fox", "\ud800")], CUT)


def test_a_template_that_repeats_a_text_is_refused() -> None:
    odd = build_tiny_wordpiece()
    odd.post_processor = processors.TemplateProcessing(
        single="$A", pair="$A [SEP] $B $A", special_tokens=[("[SEP]", 3)]
    )
    with pytest.raises(ModelInvalid, match="makes a pair of something else"):
        TextTokenizer(odd, 32, len(VOCABULARY)).require_pairs()


def test_a_limit_without_room_for_two_texts_is_a_wrong_setting() -> None:
    with pytest.raises(ConfigError, match="max_length 4 leaves no room for two texts"):
        ours("minilm", 4).require_pairs()


def test_a_long_first_text_before_many_is_refused_before_the_second_texts_are_read() -> None:
    tokenizer = TextTokenizer(build_tiny_wordpiece(), 32, len(VOCABULARY))
    with pytest.raises(BatchTooLarge, match="at least 2300 tokens; one request may have 2000"):
        tokenizer.encode_pairs([("hello " * 20, "\ud800")] * 100, CUT, max_total=2_000)


@given(first=st.integers(0, 50), second=st.integers(0, 50), room=st.integers(2, 30), least=st.integers(1, 40))
def test_the_second_text_is_cut_first_and_keeps_its_least(
    first: int, second: int, room: int, least: int
) -> None:
    kept_first, kept_second = truncate_second_first(first, second, room, least)
    assert kept_first + kept_second == min(first + second, room)
    assert kept_second >= min(second, least, room // 2)
    assert kept_first == first or kept_second == min(second, least, room // 2)
