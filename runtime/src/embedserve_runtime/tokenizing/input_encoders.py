"""Encodes inputs by their role: most models encode queries like documents, some have an encoder of their own for them.

TextEncoder             texts with a prompt, truncated to the model's length
QueryExpansionEncoder   queries of a multi-vector model: truncated to a length of their own and padded
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from msgspec.structs import replace

from embedserve_runtime.forward.arrays import Int32Array
from embedserve_runtime.forward.batch import Tokens, TokenSequence
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.heads.description import QueryExpansion
from embedserve_runtime.tokenizing.backend import Token
from embedserve_runtime.tokenizing.chunks import TextChunk
from embedserve_runtime.tokenizing.texts import Input, TextTokenizer
from embedserve_runtime.tokenizing.truncation import TruncationRules


class InputEncoder(Protocol):
    """Encodes inputs of one role. Its methods raise EmptyInput, InputTooLong, InvalidInput, each naming the input."""

    def encode(self, inputs: Sequence[Input], prompt: str, rules: TruncationRules) -> Sequence[Tokens]: ...

    def locate(self, inputs: Sequence[Input], prompt: str, rules: TruncationRules) -> list[list[Token]]:
        """Return the tokens that `encode` gives, with their offsets in prompt + input."""
        ...


@dataclass(frozen=True, slots=True)
class InputEncoders:
    """The encoder for each role; the same one where the model treats both alike."""

    queries: InputEncoder
    documents: InputEncoder

    @classmethod
    def for_model(cls, card: ModelCard, tokenizer: TextTokenizer, task: int = 0) -> InputEncoders:
        """Build the encoders of a model. task: the number of the card's task.

        Raises ConfigError when a length leaves no room for a text.
        """
        plain = TextEncoder(tokenizer, card.pipeline.include_prompt, task=task)
        if card.query is not None:
            return cls(
                TextEncoder(
                    tokenizer.queries, card.query.card.pipeline.include_prompt, queries=True, task=task
                ),
                plain,
            )
        late = card.late_interaction
        if late is None:
            return cls(plain, plain)
        length = min(late.query_length or card.max_length, card.encoder.max_positions)
        return cls(QueryExpansionEncoder(tokenizer.with_max_length(length), late.expansion), plain)


@dataclass(frozen=True, slots=True)
class TextEncoder:
    """Encodes texts with a prompt.

    pools_prompt: whether the tokens of the prompt take part in pooling. queries: whether the sequences are queries.
    task: the number of the task that they are encoded for.
    """

    tokenizer: TextTokenizer
    pools_prompt: bool
    queries: bool = False
    task: int = 0

    def encode(self, inputs: Sequence[Input], prompt: str, rules: TruncationRules) -> Sequence[Tokens]:
        sequences = self.tokenizer.with_request_limit(rules.max_length).encode(inputs, prompt, rules)
        pool_start = self._count_skipped_tokens(prompt)
        if not pool_start and not self.queries and not self.task:
            return sequences
        return [
            TokenSequence(
                ids,
                pool_start=pool_start if isinstance(item, str) else 0,
                is_query_role=self.queries,
                task=self.task,
            )
            for item, ids in zip(inputs, sequences, strict=True)
        ]

    def split(self, texts: Sequence[str], prompt: str, rules: TruncationRules) -> list[list[TextChunk]]:
        """Split each text into chunks of at most the length that `encode` truncates to.

        Raises EmptyInput, InputTooLong, InvalidInput.
        """
        split = self.tokenizer.with_request_limit(rules.max_length).split(texts, prompt)
        pool_start = self._count_skipped_tokens(prompt)
        if not pool_start and not self.queries and not self.task:
            return split
        marks = {"pool_start": pool_start, "is_query_role": self.queries, "task": self.task}
        return [[replace(chunk, **marks) for chunk in chunks] for chunks in split]

    def _count_skipped_tokens(self, prompt: str) -> int:
        return 0 if not prompt or self.pools_prompt else self.tokenizer.count_prompt_tokens(prompt)

    def locate(self, inputs: Sequence[Input], prompt: str, rules: TruncationRules) -> list[list[Token]]:
        return self.tokenizer.with_request_limit(rules.max_length).locate(inputs, prompt, rules)


@dataclass(frozen=True, slots=True)
class QueryExpansionEncoder:
    """Encodes queries and pads them with a token to a fixed length. Id arrays are used as they are.

    expansion: None pads nothing.
    """

    tokenizer: TextTokenizer
    expansion: QueryExpansion | None

    def encode(self, inputs: Sequence[Input], prompt: str, rules: TruncationRules) -> Sequence[Tokens]:
        sequences = self.tokenizer.with_request_limit(rules.max_length).encode(inputs, prompt, rules)
        return [
            self._pad(ids) if isinstance(item, str) else TokenSequence(ids, is_query_role=True)
            for item, ids in zip(inputs, sequences, strict=True)
        ]

    def locate(self, inputs: Sequence[Input], prompt: str, rules: TruncationRules) -> list[list[Token]]:
        located = self.tokenizer.with_request_limit(rules.max_length).locate(inputs, prompt, rules)
        for item, tokens in zip(inputs, located, strict=True):
            if isinstance(item, str):
                tokens += [
                    Token(token.id, token.text, True)
                    for token in self.tokenizer.list_tokens_without_offsets(self._build_padding(len(tokens)))
                ]
        return located

    def _pad(self, ids: Int32Array) -> TokenSequence:
        padding = self._build_padding(len(ids))
        if not len(padding):
            return TokenSequence(ids, is_query_role=True)
        hidden = self.expansion is not None and not self.expansion.attend
        return TokenSequence(
            np.concatenate((ids, padding)), is_query_role=True, attended_length=len(ids) if hidden else None
        )

    def _build_padding(self, length: int) -> Int32Array:
        if self.expansion is None:
            return np.zeros(0, dtype=np.int32)
        missing = max(0, self.expansion.length - length)
        return np.full(missing, self.expansion.token, dtype=np.int32)
