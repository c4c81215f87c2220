"""Builds the prompts of causal rerankers, which judge a document for a query by the probability of "yes".

Sources: the model cards of Qwen3-Reranker (one part holds instruction, query and document) and of
bge-reranker-v2-gemma (each has a part of its own). Only the document is truncated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from embedserve_runtime.engines.base import Int32Array
from embedserve_runtime.errors import ConfigError, InputTooLong
from embedserve_runtime.tokenizing.backend import (
    EncodedPart,
    EncodeOptions,
    TokenizerBackend,
    split_into_slices,
)
from embedserve_runtime.tokenizing.pairs import Pair, check_not_empty, check_total
from embedserve_runtime.tokenizing.truncation import TruncationRules, no_room_error, truncate_ids

_PLACEHOLDERS = re.compile(r"\{(instruction|query|document)\}")
_DOCUMENT = "{document}"


@dataclass(frozen=True, slots=True, eq=False)
class _FilledTemplate:
    """A template filled with a query: the ids before and after the document, and the text before it within its part,
    which is tokenized together with it.

    room: the number of tokens that prefix and document may have together. prefix_tokens: those of the prefix alone.
    """

    head: Int32Array
    prefix: str
    tail: Int32Array
    room: int
    prefix_tokens: int

    @property
    def least_tokens(self) -> int:
        """The tokens of a sequence beside those of the document."""
        return len(self.head) + self.prefix_tokens + len(self.tail)


class TemplateEncoder:
    """Turns pairs into sequences of at most `max_length` tokens; no special tokens are added to the template's own."""

    def __init__(self, backend: TokenizerBackend, max_length: int, parts: Sequence[str]) -> None:
        """parts: texts with the placeholders {instruction}, {query} and {document}. Each part is tokenized on its own
        and the ids are joined; special tokens are written out. The document ends its part.

        Raises ConfigError.
        """
        places = [place for part in parts for place in _PLACEHOLDERS.findall(part)]
        last = next((i for i, part in enumerate(parts) if part.endswith(_DOCUMENT)), None)
        if last is None or places.count("document") != 1 or "query" not in places:
            raise ConfigError(
                "a template needs {query}, and {document} once, at the end of a part; the parts are "
                + ", ".join(map(repr, parts))
            )
        self._before = tuple(parts[:last])
        self._prefix = parts[last].removesuffix(_DOCUMENT)
        self._after = tuple(parts[last + 1 :])
        self._backend = backend
        self._max_length = max_length
        if self._fill_template({"query": "", "instruction": ""}) is None:
            raise no_room_error(max_length, "beside the template")

    def encode(
        self,
        pairs: Sequence[Pair],
        rules: TruncationRules,
        *,
        instruction: str = "",
        max_total: int | None = None,
    ) -> list[Int32Array]:
        """Encode each pair of query and document into a sequence; only the document is truncated.

        max_total: the tokens that all pairs may have together. Raises EmptyInput and InputTooLong, naming the pair,
        InvalidInput and BatchTooLarge.
        """
        check_not_empty(pairs)
        options = EncodeOptions(self._max_length, from_left=not rules.truncate or rules.side == "right")
        templates: dict[str, _FilledTemplate] = {}
        for index, (query, _) in enumerate(pairs):
            if query not in templates:
                templates[query] = self._fill_or_refuse(index, query, instruction)
        check_total(pairs, {query: filled.least_tokens for query, filled in templates.items()}, max_total)
        sequences: list[Int32Array] = []
        for piece in split_into_slices(pairs, lambda pair: len(instruction) + len(pair[0]) + len(pair[1])):
            texts = [templates[query].prefix + document for query, document in piece]
            parts = self._backend.encode_parts(texts, options)
            for (query, _), text, part in zip(piece, texts, parts, strict=True):
                sequences.append(self._truncate(len(sequences), templates[query], text, part, rules))
        return sequences

    def _fill_or_refuse(self, index: int, query: str, instruction: str) -> _FilledTemplate:
        template = self._fill_template({"query": query, "instruction": instruction})
        if template is None:
            raise InputTooLong(
                f"input {index}: the query and the model's template leave no room for the document in the "
                f"{self._max_length} tokens that the model takes; shorten the query, which is never cut"
            )
        return template

    def _fill_template(self, values: Mapping[str, str]) -> _FilledTemplate | None:
        """Fill in the values; return None where not one token of a document would fit."""
        head, tail = self._tokenize_parts(self._before, values), self._tokenize_parts(self._after, values)
        room = self._max_length - len(head) - len(tail)
        prefix = _fill_part(self._prefix, values)
        (body,) = self._backend.tokenize_texts([prefix], self._max_length, "right")
        return _FilledTemplate(head, prefix, tail, room, body.count) if body.count < room else None

    def _tokenize_parts(self, parts: Sequence[str], values: Mapping[str, str]) -> Int32Array:
        """Tokenize the parts and join their ids. A part that is too long for the model is read only so far."""
        texts = [_fill_part(part, values) for part in parts]
        bodies = self._backend.tokenize_texts(texts, self._max_length, "right")
        return np.concatenate([np.empty(0, dtype=np.int32), *(body.ids for body in bodies)])

    def _truncate(
        self, index: int, template: _FilledTemplate, text: str, part: EncodedPart, rules: TruncationRules
    ) -> Int32Array:
        ids = np.array(part.encoding.ids, dtype=np.int32)
        if len(ids) > template.room and not rules.truncate:
            least = "" if part.is_whole else "at least "
            raise InputTooLong(
                f"input {index} has {least}{len(template.head) + len(ids) + len(template.tail)} tokens and the model "
                f"takes at most {self._max_length}; shorten it or set `truncate` to true"
            )
        if len(ids) <= template.room or rules.side == "right":
            return np.concatenate((template.head, ids[: template.room], template.tail))
        # The prefix stays, followed by the end of the document.
        encoded_prefix = self._backend.encode_prefix(text, len(template.prefix), template.prefix_tokens)
        prefix = np.array(encoded_prefix.ids, dtype=np.int32)
        return np.concatenate(
            (template.head, prefix, truncate_ids(ids, template.room - len(prefix), "left"), template.tail)
        )


def _fill_part(part: str, values: Mapping[str, str]) -> str:
    """Replace the placeholders of a part; braces inside a value are kept as they are."""
    return _PLACEHOLDERS.sub(lambda place: values[place[1]], part)
