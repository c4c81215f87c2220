"""Builds the prompts of rerankers that judge a document for a query in a written prompt.

Sources: the model cards of Qwen3-Reranker (one part holds instruction, query and document) and of
bge-reranker-v2-gemma (each has a part of its own); for text after the document in its part, CrossEncoder of
sentence-transformers 6.2, which writes the end of the prompt over the last tokens of what it has cut. Only the
document is truncated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from embedserve_runtime.errors import ConfigError, InputTooLong
from embedserve_runtime.forward.arrays import Int32Array
from embedserve_runtime.model.heads.description import PromptTemplate
from embedserve_runtime.tokenizing.backend import (
    EncodedPart,
    EncodeOptions,
    TokenizerBackend,
    split_into_slices,
)
from embedserve_runtime.tokenizing.pairs import Pair, check_not_empty, check_total
from embedserve_runtime.tokenizing.truncation import TruncationRules, build_no_room_error, truncate_ids

_PLACEHOLDERS = re.compile(r"\{(instruction|query|document)\}")
_DOCUMENT = "{document}"
# Two documents whose tokens have no common end: what is equal at the end of both prompts is not the document.
_FILLERS = ("0", "1 2 3 4")


@dataclass(frozen=True, slots=True)
class _TemplateParts:
    """The parts of a template, of which one holds the document, between `prefix` and `rest`."""

    before: tuple[str, ...]
    prefix: str
    rest: str
    after: tuple[str, ...]

    @classmethod
    def split(cls, parts: Sequence[str]) -> _TemplateParts:
        """Find the document's part. Raises ConfigError."""
        placeholders = [placeholder for part in parts for placeholder in _PLACEHOLDERS.findall(part)]
        if placeholders.count("document") != 1 or "query" not in placeholders:
            raise ConfigError(
                "a template needs {query}, and {document} once; the parts are " + ", ".join(map(repr, parts))
            )
        last = next(i for i, part in enumerate(parts) if _DOCUMENT in part)
        prefix, rest = parts[last].split(_DOCUMENT)
        return cls(tuple(parts[:last]), prefix, rest, tuple(parts[last + 1 :]))


@dataclass(frozen=True, slots=True, eq=False)
class _FilledTemplate:
    """A template filled with a query: the ids before and after the document's part, and the texts before and after
    the document within it, which are tokenized together with it.

    room: the number of tokens that the document's part may have. prefix_tokens: those of the prefix alone.
    suffix: the ids that the part ends with whatever the document is.
    """

    head: Int32Array
    prefix: str
    rest: str
    tail: Int32Array
    room: int
    prefix_tokens: int
    suffix: Int32Array

    @property
    def min_tokens(self) -> int:
        """Return the number of tokens of a sequence that are not of the document."""
        return len(self.head) + self.prefix_tokens + len(self.suffix) + len(self.tail)


class TemplateEncoder:
    """Turns pairs into sequences of at most `max_length` tokens; no special tokens are added to the template's own."""

    def __init__(self, backend: TokenizerBackend, max_length: int, template: PromptTemplate) -> None:
        """Tokenize each part of the template on its own and join the ids; special tokens are written out.

        Raises ConfigError.
        """
        self._template = template
        self._parts = _TemplateParts.split(template.parts)
        self._plain_parts = (
            _TemplateParts.split(template.plain_parts) if template.plain_parts else self._parts
        )
        self._backend = backend
        self._max_length = max_length
        if self._fill_template("", template.instruction) is None:
            raise build_no_room_error(max_length, "beside the template")

    def encode(
        self,
        pairs: Sequence[Pair],
        rules: TruncationRules,
        *,
        instruction: str = "",
        max_total: int | None = None,
    ) -> list[Int32Array]:
        """Encode each pair of query and document into a sequence; only the document is truncated.

        instruction: empty takes the template's own. max_total: the tokens that all pairs may have together. Raises
        EmptyInput and InputTooLong, naming the pair, InvalidInput and BatchTooLarge.
        """
        check_not_empty(pairs)
        instruction = instruction or self._template.instruction
        if self._template.strips:
            instruction = instruction.strip()
            pairs = [(query.strip(), document.strip()) for query, document in pairs]
        options = EncodeOptions(self._max_length, from_left=not rules.truncate or rules.side == "right")
        templates: dict[str, _FilledTemplate] = {}
        for index, (query, _) in enumerate(pairs):
            if query not in templates:
                templates[query] = self._fill_or_refuse(index, query, instruction)
        check_total(pairs, {query: filled.min_tokens for query, filled in templates.items()}, max_total)
        sequences: list[Int32Array] = []
        for piece in split_into_slices(pairs, lambda pair: len(instruction) + len(pair[0]) + len(pair[1])):
            texts = [templates[query].prefix + document + templates[query].rest for query, document in piece]
            parts = self._backend.encode_parts(texts, options)
            for (query, _), text, part in zip(piece, texts, parts, strict=True):
                sequences.append(self._truncate(len(sequences), templates[query], text, part, rules))
        return sequences

    def _fill_or_refuse(self, index: int, query: str, instruction: str) -> _FilledTemplate:
        template = self._fill_template(query, instruction)
        if template is None:
            raise InputTooLong(
                f"input {index}: the query and the model's template leave no room for the document in the "
                f"{self._max_length} tokens that the model takes; shorten the query, which is never cut"
            )
        return template

    def _fill_template(self, query: str, instruction: str) -> _FilledTemplate | None:
        """Fill in the values; return None where not one token of a document would fit."""
        parts = self._parts if instruction else self._plain_parts
        values = {"query": query, "instruction": instruction}
        head, tail = self._tokenize_parts(parts.before, values), self._tokenize_parts(parts.after, values)
        room = self._max_length - len(head) - len(tail)
        prefix, rest = _fill_part(parts.prefix, values), _fill_part(parts.rest, values)
        (body,) = self._backend.tokenize_texts([prefix], self._max_length, "right")
        suffix = self._find_suffix(rest)
        if body.count + len(suffix) >= room:
            return None
        return _FilledTemplate(head, prefix, rest, tail, room, body.count, suffix)

    def _find_suffix(self, rest: str) -> Int32Array:
        """Tokenize the text after the document as far as no document changes its tokens."""
        if not rest:
            return np.empty(0, dtype=np.int32)
        fillers = [filler + rest for filler in _FILLERS]
        first, second = (body.ids for body in self._backend.tokenize_texts(fillers, self._max_length, "left"))
        shorter = min(len(first), len(second))
        differs = np.flatnonzero(first[-shorter:] != second[-shorter:])
        common = shorter - 1 - int(differs[-1]) if len(differs) else shorter
        return first[len(first) - common :]

    def _tokenize_parts(self, parts: Sequence[str], values: Mapping[str, str]) -> Int32Array:
        """Tokenize the parts and join their ids. A part that is too long for the model is read only so far."""
        texts = [_fill_part(part, values) for part in parts]
        bodies = self._backend.tokenize_texts(texts, self._max_length, "right")
        return np.concatenate([np.empty(0, dtype=np.int32), *(body.ids for body in bodies)])

    def _truncate(
        self, index: int, template: _FilledTemplate, text: str, part: EncodedPart, rules: TruncationRules
    ) -> Int32Array:
        ids = np.array(part.encoding.ids, dtype=np.int32)
        if len(ids) <= template.room:
            return np.concatenate((template.head, ids, template.tail))
        if not rules.truncate:
            least = "" if part.is_whole else "at least "
            raise InputTooLong(
                f"input {index} has {least}{len(template.head) + len(ids) + len(template.tail)} tokens and the model "
                f"takes at most {self._max_length}; shorten it or set `truncate` to true"
            )
        if rules.side == "right":
            document = ids[: template.room - len(template.suffix)]
            return np.concatenate((template.head, document, template.suffix, template.tail))
        # The prefix stays, followed by the end of the document and what follows it.
        encoded_prefix = self._backend.encode_prefix(text, len(template.prefix), template.prefix_tokens)
        prefix = np.array(encoded_prefix.ids, dtype=np.int32)
        return np.concatenate(
            (template.head, prefix, truncate_ids(ids, template.room - len(prefix), "left"), template.tail)
        )


def _fill_part(part: str, values: Mapping[str, str]) -> str:
    """Replace the placeholders of a part; braces inside a value are kept as they are."""
    return _PLACEHOLDERS.sub(lambda placeholder: values[placeholder[1]], part)
