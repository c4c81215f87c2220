"""Truncates the sequences of single texts and id arrays to a length; special tokens and prompt stay."""

from __future__ import annotations

import numpy as np

from embedserve_runtime.errors import EmptyInput, InputTooLong
from embedserve_runtime.forward.arrays import Int32Array
from embedserve_runtime.tokenizing.backend import EncodedPart, TokenizerBackend, TokenSegment
from embedserve_runtime.tokenizing.truncation import TruncationRules, build_no_room_error, truncate_ids


class LengthLimit:
    """The number of tokens that a sequence may have.

    room: those besides the special tokens.
    """

    def __init__(self, backend: TokenizerBackend, max_length: int) -> None:
        """Compute the room for text. Raises ConfigError where the length leaves none."""
        self._backend = backend
        self._head, self._tail = backend.head, backend.tail
        self.max_length = max_length
        self.room = max_length - len(self._head) - len(self._tail)
        if self.room < 1:
            raise build_no_room_error(max_length, "beside the model's special tokens")

    def truncate_text(
        self, index: int, text: str, prompt_length: int, part: EncodedPart, rules: TruncationRules
    ) -> list[TokenSegment]:
        """Truncate the encoding of prompt + text. Raises EmptyInput, InputTooLong, naming the input by its index."""
        encoding, count = part.encoding, len(part.encoding)
        if not count:
            raise EmptyInput(f"input {index} has no tokens after normalizing")
        if count <= self.max_length:
            return [TokenSegment(encoding, 0, count)]
        if not rules.truncate:
            raise self._too_long_error(index, count, exact=part.is_whole)
        head, tail = len(self._head), count - len(self._tail)
        prompt = [self._encode_prompt(index, text, prompt_length)] if prompt_length else []
        if rules.side == "right":
            return [TokenSegment(encoding, 0, head + self.room), TokenSegment(encoding, tail, count)]
        # Special tokens and prompt stay, followed by the end of the text.
        start = tail - (self.room - sum(map(len, prompt)))
        return [TokenSegment(encoding, 0, head), *prompt, TokenSegment(encoding, start, count, part.shift)]

    def _encode_prompt(self, index: int, text: str, prompt_length: int) -> TokenSegment:
        """Encode the prompt before a text. Raises InputTooLong where it leaves no room for a token of the text, as all
        texts would have the same vector."""
        prompt = self._backend.encode_prefix(text, prompt_length, self.room)
        if len(prompt) >= self.room:
            raise InputTooLong(
                f"input {index}: the prompt leaves no room for a text in {self.max_length} tokens, special ones "
                "included; shorten the prompt, or allow more tokens"
            )
        return prompt

    def truncate_id_array(self, index: int, ids: Int32Array, rules: TruncationRules) -> Int32Array:
        """Truncate an id array, between its special tokens where it has them. Raises InputTooLong."""
        if len(ids) <= self.max_length:
            return ids
        if not rules.truncate:
            raise self._too_long_error(index, len(ids), exact=True)
        if not self._has_special_tokens(ids):
            return truncate_ids(ids, self.max_length, rules.side)
        content = ids[len(self._head) : len(ids) - len(self._tail)]
        return np.concatenate((self._head, truncate_ids(content, self.room, rules.side), self._tail))

    def _has_special_tokens(self, ids: Int32Array) -> bool:
        """Return whether an id array begins and ends with the special tokens."""
        head, tail = self._head, self._tail
        return bool(
            np.array_equal(ids[: len(head)], head) and np.array_equal(ids[len(ids) - len(tail) :], tail)
        )

    def _too_long_error(self, index: int, tokens: int, *, exact: bool) -> InputTooLong:
        return InputTooLong(
            f"input {index} has {'' if exact else 'at least '}{tokens} tokens and the model takes at most "
            f"{self.max_length}; shorten it or set `truncate` to true"
        )
