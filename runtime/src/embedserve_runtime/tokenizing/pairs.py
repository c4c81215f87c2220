"""Encodes pairs of texts by the template of the tokenizer's post-processor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from embedserve_runtime.errors import BatchTooLarge, EmptyInput, InputTooLong
from embedserve_runtime.forward.batch import Tokens
from embedserve_runtime.tokenizing.backend import TokenizedText, TokenizerBackend, split_into_slices
from embedserve_runtime.tokenizing.tokenizer_json import read_pair_template
from embedserve_runtime.tokenizing.truncation import (
    TruncationRules,
    build_no_room_error,
    truncate_ids,
    truncate_longest_first,
    truncate_second_first,
)

Pair = tuple[str, str]


def check_total(pairs: Sequence[Pair], tokens: Mapping[str, int], max_total: int | None) -> None:
    """Raise BatchTooLarge where the pairs have more than `max_total` tokens whatever their second texts are.

    tokens: how many each pair with this first text has at least. A long query before each of many documents is refused
    here before a sequence is built for each.
    """
    if max_total is None:
        return
    total = sum(tokens[first] for first, _ in pairs)
    if total > max_total:
        longest = max(tokens.values())
        raise BatchTooLarge(
            f"{len(pairs)} pairs, the first text of which takes up to {longest} tokens in each, have at least {total} "
            f"tokens; one request may have {max_total}. Send fewer texts at a time, or a shorter query"
        )


def check_not_empty(pairs: Sequence[Pair]) -> None:
    """Raise EmptyInput for a pair of two empty texts; one empty text is an input like any other."""
    for index, pair in enumerate(pairs):
        if not any(pair):
            raise EmptyInput(f"input {index} is empty: neither of its two texts has a character")


class PairEncoder:
    """Turns pairs into sequences of at most `max_length` tokens.

    typed: whether the sequences carry token types. Raises ConfigError and ModelInvalid.
    """

    def __init__(self, backend: TokenizerBackend, max_length: int, *, typed: bool) -> None:
        self._backend = backend
        self._template = read_pair_template(backend.tokenizer)
        self._typed = typed
        self._max_length = max_length
        self._room = max_length - self._template.special_tokens
        if self._room < 2:
            special = self._template.special_tokens
            raise build_no_room_error(
                max_length, f"for two texts beside the {special} special tokens of a pair"
            )

    @property
    def special_tokens(self) -> frozenset[int]:
        """The ids that stand around the texts of every pair."""
        segments = self._template.segments
        return frozenset(
            number for segment in segments if segment.text is None for number in segment.ids.tolist()
        )

    def encode(
        self, pairs: Sequence[Pair], prompt: str, rules: TruncationRules, max_total: int | None = None
    ) -> list[Tokens]:
        """Encode each pair, with the prompt before its first text. Equal first texts are tokenized once.

        max_total: the tokens that all pairs may have together. Raises EmptyInput, InputTooLong, InvalidInput, the first
        two naming the pair, and BatchTooLarge.
        """
        check_not_empty(pairs)
        return [
            self._join(index, pair, tokenized, rules)
            for index, (pair, tokenized) in enumerate(self._tokenize(pairs, prompt, rules, max_total))
        ]

    def _tokenize(
        self, pairs: Sequence[Pair], prompt: str, rules: TruncationRules, max_total: int | None
    ) -> Iterator[tuple[Pair, tuple[TokenizedText, TokenizedText]]]:
        side = rules.side if rules.truncate else "right"
        texts = [*dict.fromkeys(first for first, _ in pairs)]
        firsts = self._backend.tokenize_texts([prompt + text for text in texts], self._room, side)
        first_of = dict(zip(texts, firsts, strict=True))
        special_tokens = self._template.special_tokens
        least = {text: special_tokens + min(first.count, self._room) for text, first in first_of.items()}
        check_total(pairs, least, max_total)
        for pair_slice in split_into_slices(pairs, lambda pair: len(pair[0]) + len(pair[1])):
            seconds = self._backend.tokenize_texts([second for _, second in pair_slice], self._room, side)
            for pair, second in zip(pair_slice, seconds, strict=True):
                yield (prompt + pair[0], pair[1]), (first_of[pair[0]], second)

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
        lengths = (
            truncate_longest_first(*self._find_lengths(pair, tokenized), self._room)
            if rules.min_second is None
            else truncate_second_first(first.count, second.count, self._room, rules.min_second)
        )
        texts = (
            truncate_ids(first.ids, lengths[0], rules.side),
            truncate_ids(second.ids, lengths[1], rules.side),
        )
        sequence = self._template.join(texts, typed=self._typed)
        if not len(sequence):
            raise EmptyInput(f"input {index} has no tokens after normalizing")
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
