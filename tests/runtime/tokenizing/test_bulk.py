"""Ids of many texts at a time are those that the library gives to each."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from benchmarks.docstrings import paragraphs
from embedserve_runtime.tokenizing import CutRules, TextTokenizer, memory, words
from embedserve_runtime.tokenizing.bulk import MOST_CHARACTERS, Bulk
from embedserve_runtime.tokenizing.memory import LONGEST, Memory, keys_of
from embedserve_runtime.tokenizing.reader import pieces
from embedserve_runtime.tokenizing.spellers import Spelled
from embedserve_runtime.tokenizing.spelling import Split, Surroundings
from embedserve_runtime.tokenizing.tries import NOWHERE, ROOT, Bytes, Places, Trie
from embedserve_runtime.tokenizing.words import Words
from tests.runtime.tokenizing.word_kinds import KINDS, OTHERS, WORD
from tests.support.models import minilm_folder, model2vec_folder

TEXT = st.lists(
    st.one_of(
        WORD, st.text("ab", min_size=1, max_size=40), st.sampled_from([" ", "\n", "\t ", "\r\n", "\x00"])
    )
).map(" ".join)


@pytest.fixture(autouse=True)
def however_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "BULK_CHARACTERS", 0)


def words_of(tokenizer: Tokenizer) -> Words | None:
    return Words.of(tokenizer, json.loads(tokenizer.to_str()), bulk=True)


def read(tokenizer: Tokenizer) -> Words:
    tokenizer.no_padding()
    tokenizer.no_truncation()
    found = words_of(tokenizer)
    assert found is not None
    assert found.bulk is not None
    return found


def check(found: Words, tokenizer: Tokenizer, texts: Sequence[str]) -> None:
    for text, ids in zip(texts, found.ids_of(texts), strict=True):
        assert ids is None or ids.tolist() == tokenizer.encode(text, add_special_tokens=False).ids, text
        assert ids is not None or not text.isascii()


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_each_text_when_words_are_new_and_when_they_are_known(kind: str) -> None:
    tokenizer = KINDS[kind]()
    found = read(tokenizer)

    @settings(max_examples=60, deadline=None)
    @given(texts=st.lists(TEXT, min_size=1, max_size=5))
    def as_the_tokenizer(texts: list[str]) -> None:
        for _ in range(2):
            check(found, tokenizer, texts)

    as_the_tokenizer()


@pytest.fixture(scope="module")
def documentation() -> list[str]:
    return paragraphs()


@pytest.mark.thorough
@pytest.mark.parametrize("folder", [minilm_folder, model2vec_folder], ids=["WordPiece", "Unigram"])
def test_so_are_those_of_all_paragraphs_of_the_standard_library(
    folder: Callable[[], Path], documentation: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Often enough forgetting what was met."""
    monkeypatch.setattr(memory, "MOST_WORDS", 5_000)
    tokenizer = Tokenizer.from_file(str(folder() / "tokenizer.json"))
    found = read(tokenizer)
    for piece in pieces(documentation, len):
        check(found, tokenizer, piece)


@pytest.mark.parametrize("kind", OTHERS)
def test_where_the_steps_around_the_model_are_not_known_each_text_is_read_by_itself(kind: str) -> None:
    found = words_of(OTHERS[kind]())
    assert found is None or found.bulk is None


def test_special_tokens_stand_around_each_text() -> None:
    found = read(KINDS["small letters"]())
    head, tail = (np.array([number], dtype=np.int32).tobytes() for number in (7, 8))
    got = [ids.tolist() for ids in found.ids_of(["a ab", " ", "b"], head, tail) if ids is not None]
    assert got == [[7, 1, 3, 8], [7, 8], [7, 2, 8]]


def test_texts_of_a_request_that_are_long_or_not_of_ascii_are_read_as_they_are_alone() -> None:
    texts = ["a ab b. " * count for count in (1, 30, 3)] + ["b café", " ", "ab"] * 20
    many, one = (
        TextTokenizer(KINDS["small letters"](), 20, 16, blank=16, bulk=bulk) for bulk in (True, False)
    )
    rules = CutRules(truncate=True)
    got, want = (made.encode(texts, "a ", rules) for made in (many, one))
    assert list(map(list, got)) == list(map(list, want))


def test_a_text_with_more_characters_than_are_read_at_a_time_is_read_too() -> None:
    tokenizer = KINDS["whole words"]()
    check(read(tokenizer), tokenizer, [" ".join(map(str, range(MOST_CHARACTERS // 5)))])


class Lengths:
    """Spells each word by how long it is."""

    longest = LONGEST
    letters = frozenset(range(0x21, 0x7F))

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.broken = False

    def spell(self, text: Bytes, starts: Places, lengths: Places) -> Spelled:
        if self.broken:
            raise MemoryError
        self.asked += lengths.tolist()
        return Spelled(lengths.astype(np.int32), np.ones_like(lengths))


@pytest.fixture
def lengths() -> tuple[Lengths, Bulk]:
    speller = Lengths()
    return speller, Bulk(speller, Surroundings(False, Split.WHOLE, "", frozenset()), lambda word: b"")


def test_a_word_is_spelled_once_until_so_many_were_met(
    lengths: tuple[Lengths, Bulk], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "MOST_WORDS", 4)
    speller, read = lengths
    for text in ("a bb a", "bb ccc", "dddd a", "a eeeee"):
        assert [ids.tolist() for ids in read.ids([text], b"", b"")] == [[len(word) for word in text.split()]]
    assert sorted(speller.asked[:4]) == [1, 2, 3, 4]
    assert sorted(speller.asked[4:]) == [1, 5]


def test_what_could_not_be_spelled_is_not_taken_for_known(lengths: tuple[Lengths, Bulk]) -> None:
    speller, read = lengths
    speller.broken = True
    with pytest.raises(MemoryError):
        read.ids(["a bb"], b"", b"")
    speller.broken = False
    assert [ids.tolist() for ids in read.ids(["bb a"], b"", b"")] == [[2, 1]]


def test_words_have_one_slot_if_and_only_if_they_are_the_same() -> None:
    """As many as collide often."""
    source = np.random.default_rng(0)
    sizes = source.integers(1, LONGEST + 1, 20_000)
    text = np.append(source.integers(97, 99, int(sizes.sum())), np.zeros(LONGEST, dtype=int)).astype(np.uint8)
    starts = np.cumsum(sizes) - sizes
    kept = Memory()
    met = [kept.meet(keys_of(text, starts, sizes)) for _ in range(2)]
    written = [text[start : start + size].tobytes() for start, size in zip(starts, sizes, strict=True)]
    assert len(set(zip(written, met[0].slots.tolist(), strict=True))) == len(set(written))
    assert len(set(met[0].slots.tolist())) == len(set(written)) == len(met[0].fresh)
    assert {written[place] for place in met[0].fresh} == set(written)
    np.testing.assert_array_equal(met[1].slots, met[0].slots)
    assert not len(met[1].fresh)


@settings(max_examples=60, deadline=None)
@given(strings=st.sets(st.text("abc", min_size=1, max_size=5), min_size=1), text=st.text("abcd", max_size=30))
def test_a_trie_finds_all_strings_at_all_places(strings: set[str], text: str) -> None:
    numbers = {string.encode(): number for number, string in enumerate(sorted(strings))}
    letters = np.frombuffer(text.encode() + b"\0", dtype=np.uint8)
    found = Trie(numbers).matches(letters, np.full(len(letters), ROOT))
    got = {
        (place, number, one.length)
        for one in found
        for place, number in zip(one.places.tolist(), one.numbers.tolist(), strict=True)
    }
    assert got == {
        (place, number, len(string))
        for string, number in numbers.items()
        for place in range(len(text))
        if text.encode()[place:].startswith(string)
    }


def test_a_walk_may_begin_below_the_root_or_nowhere() -> None:
    trie = Trie({b"ab": 0, b"b": 1, b"c": 2})
    text = np.frombuffer(b"bbc\0", dtype=np.uint8)
    nodes = np.array([trie.child(ROOT, ord("a")), NOWHERE, ROOT, NOWHERE])
    found = [(one.places.tolist(), one.numbers.tolist()) for one in trie.matches(text, nodes)]
    assert found[0] == ([0, 2], [0, 2])
    assert trie.child(ROOT, ord("x")) == NOWHERE
