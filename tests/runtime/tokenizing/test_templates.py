"""Sequences of a written prompt: what the model cards' own code makes of them, and only the document is cut."""

from __future__ import annotations

from dataclasses import replace

import pytest
from transformers import PreTrainedTokenizerFast

from embedserve_runtime.errors import ConfigError, EmptyInput, InputTooLong
from embedserve_runtime.model.heads.description import PromptTemplate
from embedserve_runtime.tokenizing import MAX_SEQUENTIAL_CHARACTERS, MAX_SLICE_TEXTS, TruncationRules
from tests.runtime.tokenizing.kinds import ODD, SCRIPTS, ours, transformers_of

REFUSE = TruncationRules(truncate=False)
CUT = TruncationRules(truncate=True)
CUT_LEFT = TruncationRules(truncate=True, side="left")

QWEN = PromptTemplate(
    (
        '<s>system\nJudge whether the document meets the query. Answer "yes" or "no".</s>\n<s>user\n',
        "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}",
        "</s>\n<s>assistant\n<think>\n\n</think>\n\n",
    )
)
GEMMA = PromptTemplate(
    ("<s>", "A: {query}", "\n", "B: {document}", "\n", "Does passage B answer query A? Yes or No.")
)
# As mxbai-rerank-v2 asks: words stand behind the document.
JOINED = (
    "<s>system\nYou help.</s>\n<s>user\nquery: {query}\ndocument: {document}\nJudge: 0 or 1.\nAnswer:</s>\n"
)
INSTRUCTION = "Find what answers the query"
ENGLISH = SCRIPTS["english"]

DOCUMENTS = [
    pytest.param("fox", id="short"),
    pytest.param("", id="empty"),
    pytest.param(ENGLISH * 12, id="cut"),
    pytest.param(ENGLISH * (MAX_SEQUENTIAL_CHARACTERS // 5), id="very long"),
    pytest.param(ODD * 4, id="odd characters"),
    pytest.param("{query} {document} {", id="braces"),
    *(pytest.param(text * 6, id=name) for name, text in SCRIPTS.items()),
]


def plain_ids(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def as_qwen_does(tokenizer: PreTrainedTokenizerFast, query: str, document: str, max_length: int) -> list[int]:
    """Source: the model card of Qwen3-Reranker. Prefix and suffix are fixed, what is between them is truncated."""
    prefix, suffix = plain_ids(tokenizer, QWEN.parts[0]), plain_ids(tokenizer, QWEN.parts[2])
    body = f"<Instruct>: {INSTRUCTION}\n<Query>: {query}\n<Document>: {document}"
    room = max_length - len(prefix) - len(suffix)
    return [*prefix, *plain_ids(tokenizer, body)[:room], *suffix]


def as_gemma_does(
    tokenizer: PreTrainedTokenizerFast, query: str, document: str, max_length: int
) -> list[int]:
    """Source: the model card of bge-reranker-v2-gemma. Each part is tokenized alone, the passage is truncated."""
    newline, question = plain_ids(tokenizer, "\n"), plain_ids(tokenizer, GEMMA.parts[5])
    head = [*plain_ids(tokenizer, "<s>"), *plain_ids(tokenizer, f"A: {query}"), *newline]
    room = max_length - len(head) - len(newline) - len(question)
    return [*head, *plain_ids(tokenizer, f"B: {document}")[:room], *newline, *question]


@pytest.mark.parametrize("document", DOCUMENTS)
@pytest.mark.parametrize("query", ["the fox", "{document}", "कौन?"])
def test_a_template_of_one_body_equals_the_code_of_its_model_card(query: str, document: str) -> None:
    oracle = transformers_of("qwen", "right")
    encoder = ours("qwen", 240).build_template_encoder(QWEN)
    (ids,) = encoder.encode([(query, document)], CUT, instruction=INSTRUCTION)
    assert list(ids) == as_qwen_does(oracle, query, document, 240)


@pytest.mark.parametrize("document", DOCUMENTS)
@pytest.mark.parametrize("query", ["the fox", "{document}", "कौन?"])
def test_a_template_of_many_parts_equals_the_code_of_its_model_card(query: str, document: str) -> None:
    oracle = transformers_of("gemma", "right")
    (ids,) = ours("gemma", 120).build_template_encoder(GEMMA).encode([(query, document)], CUT)
    assert list(ids) == as_gemma_does(oracle, query, document, 120)


@pytest.mark.parametrize(
    "repeats", [12, MAX_SEQUENTIAL_CHARACTERS // 5], ids=["a long document", "a very long one"]
)
def test_a_cut_on_the_left_keeps_query_and_end_of_the_document(repeats: int) -> None:
    tokenizer = transformers_of("qwen", "right")
    encoder = ours("qwen", 240).build_template_encoder(QWEN)
    pair = ("the fox", ENGLISH * repeats + "sleeps")
    (ids,) = encoder.encode([pair], CUT_LEFT, instruction=INSTRUCTION)
    text = tokenizer.decode(list(ids))
    lead = f"{QWEN.parts[0]}<Instruct>: {INSTRUCTION}\n<Query>: the fox\n<Document>: "
    assert len(ids) == 240
    assert text.startswith(lead)
    assert text.endswith("sleeps" + QWEN.parts[2])
    assert text.removeprefix(lead).removesuffix(QWEN.parts[2]) in pair[1]


def as_cross_encoder_does(
    tokenizer: PreTrainedTokenizerFast, query: str, document: str, max_length: int
) -> list[int]:
    """Source: CrossEncoder of sentence-transformers. The whole text is tokenized and cut, and its end written over the
    last tokens that are left."""
    ids, short, long = (
        plain_ids(tokenizer, JOINED.replace("{query}", query).replace("{document}", text))
        for text in (document, "0", "1 2 3 4")
    )
    end = next(number for number in range(1, len(short)) if short[-number] != long[-number]) - 1
    return ids if len(ids) <= max_length else [*ids[: max_length - end], *short[-end:]]


@pytest.mark.parametrize("document", [case for case in DOCUMENTS if case.id != "braces"])
def test_text_behind_the_document_is_tokenized_with_it_and_stays(document: str) -> None:
    oracle = transformers_of("qwen", "right")
    template = PromptTemplate(tuple(JOINED.partition("</s>")))
    (ids,) = ours("qwen", 240).build_template_encoder(template).encode([("the fox", document)], CUT)
    assert list(ids) == as_cross_encoder_does(oracle, "the fox", document, 240)


def test_a_cut_on_the_left_keeps_the_text_behind_the_document() -> None:
    oracle = transformers_of("qwen", "right")
    template = PromptTemplate((JOINED,))
    (ids,) = ours("qwen", 240).build_template_encoder(template).encode([("fox", ENGLISH * 40)], CUT_LEFT)
    whole = plain_ids(oracle, JOINED.replace("{query}", "fox").replace("{document}", ENGLISH * 40))
    prefix = plain_ids(oracle, JOINED.partition("{document}")[0].replace("{query}", "fox").rstrip())
    assert list(ids[: len(prefix)]) == prefix
    assert list(ids[-150:]) == whole[-150:]
    assert len(ids) == 240


def test_a_request_without_instruction_gets_the_plain_parts() -> None:
    template = PromptTemplate(
        ("task: {instruction}\n", "{query}{document}"), plain_parts=("{query}{document}",)
    )
    encoder = ours("qwen", 240).build_template_encoder(template)
    tokenizer = transformers_of("qwen", "right")
    (plain,), (instructed,) = (
        encoder.encode([("fox", "dog")], CUT, instruction=text) for text in ("", INSTRUCTION)
    )
    assert list(plain) == plain_ids(tokenizer, "foxdog")
    assert list(instructed) == [
        *plain_ids(tokenizer, f"task: {INSTRUCTION}\n"),
        *plain_ids(tokenizer, "foxdog"),
    ]


def test_texts_are_stripped_where_the_template_says_so() -> None:
    encoders = [
        ours("qwen", 240).build_template_encoder(replace(QWEN, strips=strips)) for strips in (True, False)
    ]
    (stripped,), (unstripped,) = (encoder.encode([(" fox\n", "\tdog ")], CUT) for encoder in encoders)
    (bare,) = encoders[1].encode([("fox", "dog")], CUT)
    assert list(stripped) == list(bare) != list(unstripped)


def test_many_documents_each_get_the_ids_they_have_alone() -> None:
    encoder = ours("qwen", 300).build_template_encoder(QWEN)
    pairs = [(f"fox {index % 3}", f"{ENGLISH} {index}") for index in range(MAX_SLICE_TEXTS + 3)]
    together = encoder.encode(pairs, CUT, instruction=INSTRUCTION)
    alone = [encoder.encode([pair], CUT, instruction=INSTRUCTION)[0] for pair in pairs]
    assert [list(ids) for ids in together] == [list(ids) for ids in alone]


@pytest.mark.parametrize("rules", [CUT, CUT_LEFT, REFUSE], ids=["right", "left", "refuse"])
@pytest.mark.parametrize("words", [200, 20_000])
def test_a_query_that_leaves_no_room_is_refused_and_named(rules: TruncationRules, words: int) -> None:
    encoder = ours("gemma", 120).build_template_encoder(GEMMA)
    with pytest.raises(
        InputTooLong, match=r"input 1: the query .* no room for the document in the 120 tokens"
    ):
        encoder.encode([("fox", "dog"), ("fox " * words, "dog")], rules)


@pytest.mark.parametrize(
    ("document", "want_in_message"),
    [
        pytest.param(ENGLISH * 12, r"input 1 has \d+ tokens and the model takes at most 240", id="long"),
        pytest.param(ENGLISH * (MAX_SEQUENTIAL_CHARACTERS // 5), "input 1 has at least", id="very long"),
    ],
)
def test_too_long_without_truncation_names_input_tokens_and_limit(
    document: str, want_in_message: str
) -> None:
    with pytest.raises(InputTooLong, match=want_in_message):
        ours("qwen", 240).build_template_encoder(QWEN).encode([("fox", "dog"), ("fox", document)], REFUSE)


def test_a_pair_of_two_empty_texts_is_named_by_its_index() -> None:
    with pytest.raises(EmptyInput, match="input 1 is empty"):
        ours("gemma", 120).build_template_encoder(GEMMA).encode([("fox", "dog"), ("", "")], CUT)


WRONG = [
    pytest.param(("{query}",), id="no document"),
    pytest.param(("{document}",), id="no query"),
    pytest.param(("{query} {document}", "{document}"), id="two documents"),
]


@pytest.mark.parametrize("parts", WRONG)
def test_a_template_without_a_placeholder_for_each_text_is_a_wrong_setting(parts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="a template needs"):
        ours("gemma", 120).build_template_encoder(PromptTemplate(parts))


def test_a_template_longer_than_the_model_takes_is_a_wrong_setting() -> None:
    with pytest.raises(ConfigError, match="max_length 16 leaves no room"):
        ours("gemma", 16).build_template_encoder(GEMMA)
