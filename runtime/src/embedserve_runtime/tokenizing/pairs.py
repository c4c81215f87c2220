"""Two texts a sequence, by the template that the tokenizer's own post-processor has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from embedserve_runtime.engines.base import Tokens
from embedserve_runtime.errors import ConfigError, EmptyInput, InputTooLong
from embedserve_runtime.tokenizing.layout import read_pair_template
from embedserve_runtime.tokenizing.reader import Body, Reader, pieces
from embedserve_runtime.tokenizing.truncation import TruncationRules, longest_first, truncate_ids

Pair = tuple[str, str]


def check_not_empty(pairs: Sequence[Pair]) -> None:
    """Raise EmptyInput for a pair of two empty texts; one empty text is an input like any other."""
    for index, pair in enumerate(pairs):
        if not any(pair):
            raise EmptyInput(f"input {index} is empty: neither of its two texts has a character")


class PairEncoder:
    """Turns pairs into sequences of at most `max_length` tokens."""

    def __init__(self, reader: Reader, max_length: int, *, typed: bool) -> None:
        """typed: the sequences carry token types. Raises ConfigError and ModelInvalid."""
        self._reader = reader
        self._template = read_pair_template(reader.tokenizer)
        self._typed = typed
        self._max_length = max_length
        self._room = max_length - self._template.special_tokens
        if self._room < 2:
            raise ConfigError(
                f"max_length {max_length} leaves no room for two texts beside the {self._template.special_tokens} "
                "special tokens of a pair"
            )

    def encode(self, pairs: Sequence[Pair], prompt: str, rules: TruncationRules) -> list[Tokens]:
        """The prompt goes before the first text of each pair. One first text is tokenized once a call.

        Raises EmptyInput, InputTooLong, InvalidInput, the first two naming the pair.
        """
        check_not_empty(pairs)
        return [
            self._join(index, pair, bodies, rules)
            for index, (pair, bodies) in enumerate(self._bodies(pairs, prompt, rules))
        ]

    def _bodies(
        self, pairs: Sequence[Pair], prompt: str, rules: TruncationRules
    ) -> Iterator[tuple[Pair, tuple[Body, Body]]]:
        side = rules.side if rules.truncate else "right"
        known: dict[str, Body] = {}
        for piece in pieces(pairs, lambda pair: len(pair[0]) + len(pair[1])):
            prompted = [(prompt + first, second) for first, second in piece]
            new = [first for first in dict.fromkeys(first for first, _ in prompted) if first not in known]
            known.update(zip(new, self._reader.bodies(new, self._room, side), strict=True))
            seconds = self._reader.bodies([second for _, second in prompted], self._room, side)
            for pair, second in zip(prompted, seconds, strict=True):
                yield pair, (known[pair[0]], second)

    def _join(self, index: int, pair: Pair, bodies: tuple[Body, Body], rules: TruncationRules) -> Tokens:
        first, second = bodies
        count = first.count + second.count
        if not rules.truncate and count > self._room:
            least = "" if first.whole and second.whole else "at least "
            raise InputTooLong(
                f"input {index} has {least}{count + self._template.special_tokens} tokens and the model takes at "
                f"most {self._max_length}; shorten it or set `truncate` to true"
            )
        lengths = longest_first(*self._counts(pair, bodies), self._room)
        texts = (
            truncate_ids(first.ids, lengths[0], rules.side),
            truncate_ids(second.ids, lengths[1], rules.side),
        )
        sequence = self._template.join(texts, typed=self._typed)
        if not len(sequence):
            raise EmptyInput(f"input {index} has no tokens after normalising")
        return sequence

    def _counts(self, pair: Pair, bodies: tuple[Body, Body]) -> tuple[int, int]:
        """Lengths that `longest_first` treats as it would the real ones.

        A text that was not read to its end is longer than all that fits. Then only an odd token is at stake: which
        text is the longer one. Both are read to their ends if nothing else tells.
        """
        first, second = bodies
        told = (
            (first.whole and second.whole)
            or (first.whole and second.count >= first.count)
            or (second.whole and first.count > second.count)
        )
        if told or self._room % 2 == 0:
            return first.count, second.count
        first_count, second_count = (
            body.count if body.whole else self._reader.count(text)
            for text, body in zip(pair, bodies, strict=True)
        )
        return first_count, second_count
