"""A trie knows its strings and no others."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from embedserve_runtime.loops.tries import NONE, ROOT, STRING, Nodes, child, trie_of


def looked_up(nodes: Nodes, string: bytes) -> int:
    node = ROOT
    for byte in string:
        node = child(nodes, node, byte)
        if node == NONE:
            return NONE
    return int(nodes[node, STRING])


@settings(max_examples=100, deadline=None)
@given(
    strings=st.lists(
        st.one_of(st.text("abc", min_size=1, max_size=5).map(str.encode), st.binary(min_size=1, max_size=3)),
        unique=True,
        max_size=60,
    ),
    others=st.lists(st.one_of(st.text("abcd", max_size=6).map(str.encode), st.binary(max_size=4))),
)
def test_strings_have_their_numbers_and_others_have_none(strings: list[bytes], others: list[bytes]) -> None:
    numbers = {string: number for number, string in enumerate(strings)}
    nodes = trie_of(numbers)
    for string in [*strings, *others]:
        assert looked_up(nodes, string) == numbers.get(string, NONE)


def test_as_many_as_a_vocabulary_has_fit_with_few_places_left_free() -> None:
    source = np.random.default_rng(0)
    strings = {
        source.integers(0, 256, size, dtype=np.uint8).tobytes() for size in source.integers(1, 9, 3_000)
    }
    numbers = {string: number for number, string in enumerate(sorted(strings))}
    nodes = trie_of(numbers)
    assert all(looked_up(nodes, string) == number for string, number in numbers.items())
