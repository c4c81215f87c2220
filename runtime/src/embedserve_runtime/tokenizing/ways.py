"""How inputs become sequences by what they are: most models have one way, some another one for queries.

plain      texts with a prompt, cut to the model's length
expanded   queries of a multi-vector model: cut to a length of their own and filled up
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from embedserve_runtime.engines.base import Int32Array, Tokens, TokenSequence
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.heads.description import QueryExpansion
from embedserve_runtime.tokenizing.cutting import CutRules
from embedserve_runtime.tokenizing.reader import Token
from embedserve_runtime.tokenizing.texts import Input, TextTokenizer


class Way(Protocol):
    """Both raise EmptyInput, InputTooLong, InvalidInput, each naming the input."""

    def encode(self, inputs: Sequence[Input], prompt: str, rules: CutRules) -> Sequence[Tokens]: ...

    def locate(self, inputs: Sequence[Input], prompt: str, rules: CutRules) -> list[list[Token]]:
        """The tokens of `encode`, with their places in prompt + input."""
        ...


@dataclass(frozen=True, slots=True)
class Ways:
    """queries, documents: the same where the model has one way for all."""

    queries: Way
    documents: Way

    @classmethod
    def of(cls, card: ModelCard, tokenizer: TextTokenizer) -> Ways:
        """Raises ConfigError when a length leaves no room for a text."""
        plain = Plain(tokenizer, card.pipeline.include_prompt)
        if card.query is not None:
            return cls(Plain(tokenizer.queries, card.query.card.pipeline.include_prompt, queries=True), plain)
        late = card.late_interaction
        if late is None:
            return cls(plain, plain)
        length = min(late.query_length or card.max_length, card.encoder.max_tokens)
        return cls(Expanded(tokenizer.within(length), late.expansion), plain)


@dataclass(frozen=True, slots=True)
class Plain:
    """pools_prompt: whether the tokens of the prompt take part in pooling. queries: marks the sequences as such."""

    tokenizer: TextTokenizer
    pools_prompt: bool
    queries: bool = False

    def encode(self, inputs: Sequence[Input], prompt: str, rules: CutRules) -> Sequence[Tokens]:
        sequences = self.tokenizer.encode(inputs, prompt, rules)
        unpooled = 0 if not prompt or self.pools_prompt else self.tokenizer.prompt_tokens(prompt)
        if not unpooled and not self.queries:
            return sequences
        return [
            TokenSequence(ids, unpooled=unpooled if isinstance(item, str) else 0, query=self.queries)
            for item, ids in zip(inputs, sequences, strict=True)
        ]

    def locate(self, inputs: Sequence[Input], prompt: str, rules: CutRules) -> list[list[Token]]:
        return self.tokenizer.locate(inputs, prompt, rules)


@dataclass(frozen=True, slots=True)
class Expanded:
    """Id arrays are used as they are here too. expansion: None fills nothing up."""

    tokenizer: TextTokenizer
    expansion: QueryExpansion | None

    def encode(self, inputs: Sequence[Input], prompt: str, rules: CutRules) -> Sequence[Tokens]:
        sequences = self.tokenizer.encode(inputs, prompt, rules)
        return [
            self._filled(ids) if isinstance(item, str) else TokenSequence(ids, query=True)
            for item, ids in zip(inputs, sequences, strict=True)
        ]

    def locate(self, inputs: Sequence[Input], prompt: str, rules: CutRules) -> list[list[Token]]:
        located = self.tokenizer.locate(inputs, prompt, rules)
        for item, tokens in zip(inputs, located, strict=True):
            if isinstance(item, str):
                tokens += [
                    Token(token.id, token.text, True)
                    for token in self.tokenizer.named(self._filling(len(tokens)))
                ]
        return located

    def _filled(self, ids: Int32Array) -> TokenSequence:
        filling = self._filling(len(ids))
        if not len(filling):
            return TokenSequence(ids, query=True)
        hidden = self.expansion is not None and not self.expansion.attend
        return TokenSequence(
            np.concatenate((ids, filling)), query=True, attended=len(ids) if hidden else None
        )

    def _filling(self, length: int) -> Int32Array:
        if self.expansion is None:
            return np.zeros(0, dtype=np.int32)
        missing = max(0, self.expansion.length - length)
        return np.full(missing, self.expansion.token, dtype=np.int32)
