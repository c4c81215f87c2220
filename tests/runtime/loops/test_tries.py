"""A trie knows its strings and no others."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from embedserve_runtime.loops.tries import FREE, NONE, ROOT, Trie, build_trie, child


def built(numbers: Mapping[bytes, int]) -> Trie:
    trie = build_trie(numbers)
    assert trie is not None
    return trie


def looked_up(trie: Trie, string: bytes) -> int:
    node = ROOT
    for byte in string:
        node = child(trie.nodes, node, byte)
        if node == NONE:
            return NONE
    return int(trie.numbers[node])


def without_free(string: bytes) -> bytes:
    return string.replace(bytes([FREE]), b"")


@settings(max_examples=100, deadline=None)
@given(
    strings=st.lists(
        st.one_of(
            st.text("abc", min_size=1, max_size=5).map(str.encode),
            st.binary(min_size=1, max_size=3).map(without_free).filter(bool),
        ),
        unique=True,
        max_size=60,
    ),
    others=st.lists(
        st.one_of(st.text("abcd", max_size=6).map(str.encode), st.binary(max_size=4).map(without_free))
    ),
)
def test_strings_have_their_numbers_and_others_have_none(strings: list[bytes], others: list[bytes]) -> None:
    numbers = {string: number for number, string in enumerate(strings)}
    trie = built(numbers)
    for string in [*strings, *others]:
        assert looked_up(trie, string) == numbers.get(string, NONE)


def test_as_many_as_a_vocabulary_has_fit_with_few_places_left_free() -> None:
    source = np.random.default_rng(0)
    strings = {
        source.integers(0, FREE, size, dtype=np.uint8).tobytes() for size in source.integers(1, 9, 3_000)
    }
    numbers = {string: number for number, string in enumerate(sorted(strings))}
    trie = built(numbers)
    assert all(looked_up(trie, string) == number for string, number in numbers.items())
