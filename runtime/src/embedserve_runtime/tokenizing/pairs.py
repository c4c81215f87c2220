"""Encodes pairs of texts by the template of the tokenizer's post-processor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from embedserve_runtime.engines.base import Tokens
from embedserve_runtime.errors import ConfigError, EmptyInput, InputTooLong
from embedserve_runtime.tokenizing.backend import TokenizedText, TokenizerBackend, split_into_slices
from embedserve_runtime.tokenizing.tokenizer_json import read_pair_template
from embedserve_runtime.tokenizing.truncation import TruncationRules, truncate_ids, truncate_longest_first

Pair = tuple[str, str]


def check_not_empty(pairs: Sequence[Pair]) -> None:
    """Raise EmptyInput for a pair of two empty texts; one empty text is an input like any other."""
    for index, pair in enumerate(pairs):
        if not any(pair):
            raise EmptyInput(f"input {index} is empty: neither of its two texts has a character")


class PairEncoder:
    """Turns pairs into sequences of at most `max_length` tokens."""

    def __init__(self, backend: TokenizerBackend, max_length: int, *, typed: bool) -> None:
        """typed: whether the sequences carry token types. Raises ConfigError and ModelInvalid."""
        self._backend = backend
        self._template = read_pair_template(backend.tokenizer)
        self._typed = typed
        self._max_length = max_length
        self._room = max_length - self._template.special_tokens
        if self._room < 2:
            raise ConfigError(
                f"max_length {max_length} leaves no room for two texts beside the {self._template.special_tokens} "
                "special tokens of a pair"
            )

    @property
    def special_tokens(self) -> frozenset[int]:
        """The ids that stand around the texts of every pair."""
        segments = self._template.segments
        return frozenset(
            number for segment in segments if segment.text is None for number in segment.ids.tolist()
        )

    def encode(self, pairs: Sequence[Pair], prompt: str, rules: TruncationRules) -> list[Tokens]:
        """Encode each pair, with the prompt before its first text. Equal first texts are tokenized once.

        Raises EmptyInput, InputTooLong, InvalidInput, the first two naming the pair.
        """
        check_not_empty(pairs)
        return [
            self._join(index, pair, tokenized, rules)
            for index, (pair, tokenized) in enumerate(self._tokenize(pairs, prompt, rules))
        ]

    def _tokenize(
        self, pairs: Sequence[Pair], prompt: str, rules: TruncationRules
    ) -> Iterator[tuple[Pair, tuple[TokenizedText, TokenizedText]]]:
        side = rules.side if rules.truncate else "right"
        known: dict[str, TokenizedText] = {}
        for pair_slice in split_into_slices(pairs, lambda pair: len(pair[0]) + len(pair[1])):
            prompted = [(prompt + first, second) for first, second in pair_slice]
            new = [first for first in dict.fromkeys(first for first, _ in prompted) if first not in known]
            known.update(zip(new, self._backend.tokenize_texts(new, self._room, side), strict=True))
            seconds = self._backend.tokenize_texts([second for _, second in prompted], self._room, side)
            for pair, second in zip(prompted, seconds, strict=True):
                yield pair, (known[pair[0]], second)

    def _join(
        self, index: int, pair: Pair, tokenized: tuple[TokenizedText, TokenizedText], rules: TruncationRules
    ) -> Tokens:
        first, second = tokenized
        count = first.count + second.count
        if not rules.truncate and count > self._room:
            least = "" if first.is_whole and second.is_whole else "at least "
            raise InputTooLong(
                f"input {index} has {least}{count + self._template.special_tokens} tokens and the model takes at "
                f"most {self._max_length}; shorten it or set `truncate` to true"
            )
        lengths = truncate_longest_first(*self._find_lengths(pair, tokenized), self._room)
        texts = (
            truncate_ids(first.ids, lengths[0], rules.side),
            truncate_ids(second.ids, lengths[1], rules.side),
        )
        sequence = self._template.join(texts, typed=self._typed)
        if not len(sequence):
            raise EmptyInput(f"input {index} has no tokens after normalising")
        return sequence

    def _find_lengths(self, pair: Pair, tokenized: tuple[TokenizedText, TokenizedText]) -> tuple[int, int]:
        """Return lengths for which `longest_first` gives the same result as for the full ones.

        A text that was not read to its end is longer than what fits. Then only an odd token depends on which text is
        the longer one. Both are read to their ends if nothing else decides.
        """
        first, second = tokenized
        is_decided = (
            (first.is_whole and second.is_whole)
            or (first.is_whole and second.count >= first.count)
            or (second.is_whole and first.count > second.count)
        )
        if is_decided or self._room % 2 == 0:
            return first.count, second.count
        first_count, second_count = (
            text_tokens.count if text_tokens.is_whole else self._backend.count_tokens(text)
            for text, text_tokens in zip(pair, tokenized, strict=True)
        )
        return first_count, second_count
