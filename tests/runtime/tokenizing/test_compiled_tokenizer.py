"""Ids that the compiled loops find are those that the library gives to each text."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, normalizers

from benchmarks.docstrings import paragraphs
from embedserve_runtime.loops.tokenization import MAX_WORD_BYTES
from embedserve_runtime.tokenizing import TextTokenizer, TruncationRules
from embedserve_runtime.tokenizing.backend import split_into_slices
from embedserve_runtime.tokenizing.compiled_tokenizer import CompiledTokenizer
from embedserve_runtime.tokenizing.table_texts import TableTexts
from embedserve_runtime.tokenizing.word_tokenizer import WordTokenizer
from tests.runtime.tokenizing.kinds import SCRIPTS
from tests.runtime.tokenizing.word_kinds import KINDS, METASPACE, OTHERS, WORD, unigram, wordpiece
from tests.support.models import minilm_folder, model2vec_folder

TEXT = st.lists(
    st.one_of(
        WORD,
        st.text("ab", min_size=1, max_size=40),
        st.text("ab", min_size=150, max_size=150),
        st.text("aáÁＡｂ½ǆ的가а\u00a0\u00ad\u3000\x01▁<pdÅ", min_size=1, max_size=8),
        st.sampled_from([" ", "\n", "\t ", "\r\n", "\x00", "\x0b", "\x1c", "\u2028", "\U0001f600", "\ud83d"]),
        st.sampled_from([*SCRIPTS.values()]),
    )
).map(" ".join)


def words_of(tokenizer: Tokenizer) -> WordTokenizer | None:
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return WordTokenizer.build(tokenizer, json.loads(tokenizer.to_str()), compiled=True)


def read(tokenizer: Tokenizer) -> tuple[WordTokenizer, CompiledTokenizer]:
    found = words_of(tokenizer)
    assert found is not None
    assert found.compiled is not None
    return found, found.compiled


def check(found: WordTokenizer, tokenizer: Tokenizer, texts: Sequence[str]) -> None:
    for text, ids in zip(texts, found.encode_all(texts), strict=True):
        assert ids is None or ids.tolist() == tokenizer.encode(text, add_special_tokens=False).ids, text
        assert ids is not None or not text.isascii()


def left_out(compiled: CompiledTokenizer, texts: Sequence[str]) -> list[int]:
    odd = compiled.read(texts, b"", b"").unread
    return [0] * len(texts) if odd is None else odd.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_each_text(kind: str) -> None:
    tokenizer = KINDS[kind]()
    found, _ = read(tokenizer)

    @settings(max_examples=80, deadline=None)
    @given(texts=st.lists(TEXT, min_size=1, max_size=5))
    def as_the_tokenizer(texts: list[str]) -> None:
        check(found, tokenizer, texts)

    as_the_tokenizer()


@pytest.fixture(scope="module")
def documentation() -> list[str]:
    return paragraphs()


@pytest.mark.thorough
@pytest.mark.parametrize("folder", [minilm_folder, model2vec_folder], ids=["WordPiece", "Unigram"])
def test_so_are_those_of_all_paragraphs_of_the_standard_library(
    folder: Callable[[], Path], documentation: list[str]
) -> None:
    tokenizer = Tokenizer.from_file(str(folder() / "tokenizer.json"))
    found, compiled = read(tokenizer)
    odd = 0
    for piece in split_into_slices(documentation, len):
        check(found, tokenizer, piece)
        odd += sum(left_out(compiled, piece))
    assert odd < len(documentation) / 1_000


@pytest.mark.thorough
@pytest.mark.parametrize("folder", [minilm_folder, model2vec_folder], ids=["WordPiece", "Unigram"])
def test_so_are_those_of_every_character_of_the_first_plane(folder: Callable[[], Path]) -> None:
    tokenizer = Tokenizer.from_file(str(folder() / "tokenizer.json"))
    found, _ = read(tokenizer)
    characters = [chr(code) for code in range(0x10000) if not 0xD800 <= code < 0xE000]
    for start in range(0, len(characters), 1_000):
        check(found, tokenizer, [f"a{one}b {one}{one}" for one in characters[start : start + 1_000]])


@pytest.mark.parametrize("kind", OTHERS)
def test_where_the_steps_around_the_model_are_not_known_there_are_none(kind: str) -> None:
    found = words_of(OTHERS[kind]())
    assert found is None or found.compiled is None


@pytest.mark.parametrize(
    "text", ["", " ", "a [X] b", *(SCRIPTS[name] for name in ("english", "german", "chinese", "korean"))]
)
@pytest.mark.parametrize("kind", ["all-MiniLM-L6-v2", "XLM-RoBERTa"])
def test_plain_texts_are_read(kind: str, text: str) -> None:
    _, compiled = read(KINDS[kind]())
    assert not any(left_out(compiled, ["a", text, "b"]))


@pytest.mark.parametrize(
    "text",
    ["a [unk] b", "a\u0301", "\U0001f600", "half \ud83d", "a▁b", "a" * (MAX_WORD_BYTES + 100)],
    ids=["an added token", "a mark", "emoji", "a surrogate", "what stands before words", "a long word"],
)
def test_others_are_left_out_and_take_nothing_from_their_neighbours(text: str) -> None:
    tokenizer = unigram(METASPACE)
    tokenizer.add_special_tokens(["[UNK]"])
    _, compiled = read(tokenizer)
    alone, beside = compiled.read(["a b", "ab"], b"", b""), compiled.read(["a b", text, "ab"], b"", b"")
    assert beside.unread is not None
    assert beside.unread.tolist() == [0, 1, 0]
    (first, second), (before, left, after) = alone.sequences, beside.sequences
    assert [*before, *left, *after] == [*first, *second]
    assert (len(before), len(left)) == (len(first), 0)


@pytest.mark.parametrize(
    "text", ["a ａｂ b", "a\x01b", "a\u00adb", "ab"], ids=["wide", "between", "hidden", "as it is"]
)
def test_texts_that_may_hold_an_added_token_once_they_are_normalized_are_left_out(text: str) -> None:
    tokenizer = wordpiece(normalizers.Sequence([normalizers.NFKC(), normalizers.BertNormalizer()]))
    tokenizer.add_tokens([AddedToken("ab", normalized=True)])
    found, compiled = read(tokenizer)
    assert left_out(compiled, [text, "b a"]) == [1, 0]
    check(found, tokenizer, [text])


def test_special_tokens_stand_around_each_text() -> None:
    found, _ = read(KINDS["small letters"]())
    head, tail = (np.array([number], dtype=np.int32).tobytes() for number in (7, 8))
    got = [
        ids.tolist() for ids in found.encode_all(["a ab", " ", "[UNK]", "b"], head, tail) if ids is not None
    ]
    assert got == [[7, 1, 3, 8], [7, 8], [7, 0, 8], [7, 2, 8]]


def test_texts_of_a_request_that_are_long_or_are_left_out_are_read_as_they_are_alone() -> None:
    texts = ["a ab b. " * count for count in (1, 30, 3)] + ["b café", " ", "ab", "[UNK] a", "e\u0301"] * 4
    many, one = (
        TextTokenizer(KINDS["small letters"](), 20, 16, table=TableTexts(16, compiled=compiled))
        for compiled in (True, False)
    )
    rules = TruncationRules(truncate=True)
    got, want = (made.encode(texts, "a ", rules) for made in (many, one))
    assert list(map(list, got)) == list(map(list, want))
