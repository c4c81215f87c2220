"""A written prompt around query and document, for causal models that rank by the probability of "yes".

Sources: the model cards of Qwen3-Reranker (one part holds instruction, query and document) and of
bge-reranker-v2-gemma (each has a part of its own). Of the document alone tokens are cut.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from embedserve_runtime.engines.base import Int32Array
from embedserve_runtime.errors import ConfigError, InputTooLong
from embedserve_runtime.tokenizing.pairs import Pair, check_not_empty
from embedserve_runtime.tokenizing.reader import Reader, TextPart, TokenNeeds, pieces
from embedserve_runtime.tokenizing.truncation import TruncationRules, truncate_ids

_PLACES = re.compile(r"\{(instruction|query|document)\}")
_DOCUMENT = "{document}"


@dataclass(frozen=True, slots=True, eq=False)
class _Frame:
    """What stands around a document: ids before and after, and the text `lead` that is tokenized together with it.

    room: tokens that lead and document may have together. lead_tokens: those of the lead alone.
    """

    head: Int32Array
    lead: str
    tail: Int32Array
    room: int
    lead_tokens: int


class TemplateEncoder:
    """Turns pairs into sequences of at most `max_length` tokens; no special tokens are added to the template's own."""

    def __init__(self, reader: Reader, max_length: int, parts: Sequence[str]) -> None:
        """parts: texts with the places {instruction}, {query} and {document}. Each part is tokenized on its own and
        the ids are joined; special tokens are written out. The document is the end of its part.

        Raises ConfigError.
        """
        places = [place for part in parts for place in _PLACES.findall(part)]
        last = next((i for i, part in enumerate(parts) if part.endswith(_DOCUMENT)), None)
        if last is None or places.count("document") != 1 or "query" not in places:
            raise ConfigError(
                "a template needs {query}, and {document} once, at the end of a part; the parts are "
                + ", ".join(map(repr, parts))
            )
        self._before = tuple(parts[:last])
        self._lead = parts[last].removesuffix(_DOCUMENT)
        self._after = tuple(parts[last + 1 :])
        self._reader = reader
        self._max_length = max_length
        if self._frame({"query": "", "instruction": ""}) is None:
            raise ConfigError(f"max_length {max_length} leaves no room beside the template")

    def encode(
        self, pairs: Sequence[Pair], rules: TruncationRules, *, instruction: str = ""
    ) -> list[Int32Array]:
        """One sequence a pair of query and document; only the document is cut.

        Raises EmptyInput and InputTooLong, naming the pair, and InvalidInput.
        """
        check_not_empty(pairs)
        needs = TokenNeeds(self._max_length, from_left=not rules.truncate or rules.side == "right")
        frames: dict[str, _Frame] = {}
        sequences: list[Int32Array] = []
        for piece in pieces(pairs, lambda pair: len(instruction) + len(pair[0]) + len(pair[1])):
            for index, (query, _) in enumerate(piece, len(sequences)):
                if query not in frames:
                    frames[query] = self._frame_of(index, query, instruction)
            texts = [frames[query].lead + document for query, document in piece]
            parts = self._reader.parts(texts, needs)
            for (query, _), text, part in zip(piece, texts, parts, strict=True):
                sequences.append(self._fit(len(sequences), frames[query], text, part, rules))
        return sequences

    def _frame_of(self, index: int, query: str, instruction: str) -> _Frame:
        frame = self._frame({"query": query, "instruction": instruction})
        if frame is None:
            raise InputTooLong(
                f"input {index}: the query and the model's template leave no room for the document in the "
                f"{self._max_length} tokens that the model takes; shorten the query, which is never cut"
            )
        return frame

    def _frame(self, values: Mapping[str, str]) -> _Frame | None:
        """Return the frame of a query; None where not one token of a document fits."""
        head, tail = self._join(self._before, values), self._join(self._after, values)
        room = self._max_length - len(head) - len(tail)
        lead = _fill_in(self._lead, values)
        (body,) = self._reader.bodies([lead], self._max_length, "right")
        return _Frame(head, lead, tail, room, body.count) if body.count < room else None

    def _join(self, parts: Sequence[str], values: Mapping[str, str]) -> Int32Array:
        """Ids of the parts; of a part too long for the model, as many as show that."""
        texts = [_fill_in(part, values) for part in parts]
        bodies = self._reader.bodies(texts, self._max_length, "right")
        return np.concatenate([np.empty(0, dtype=np.int32), *(body.ids for body in bodies)])

    def _fit(
        self, index: int, frame: _Frame, text: str, part: TextPart, rules: TruncationRules
    ) -> Int32Array:
        ids = np.array(part.encoding.ids, dtype=np.int32)
        if len(ids) > frame.room and not rules.truncate:
            least = "" if part.whole else "at least "
            raise InputTooLong(
                f"input {index} has {least}{len(frame.head) + len(ids) + len(frame.tail)} tokens and the model "
                f"takes at most {self._max_length}; shorten it or set `truncate` to true"
            )
        if len(ids) <= frame.room or rules.side == "right":
            return np.concatenate((frame.head, ids[: frame.room], frame.tail))
        # The lead stays, then comes the end of the document.
        leading = self._reader.leading(text, len(frame.lead), frame.lead_tokens)
        lead = np.array(leading.ids, dtype=np.int32)
        return np.concatenate(
            (frame.head, lead, truncate_ids(ids, frame.room - len(lead), "left"), frame.tail)
        )


def _fill_in(part: str, values: Mapping[str, str]) -> str:
    """The part with its places filled; braces inside a value mean nothing."""
    return _PLACES.sub(lambda place: values[place[1]], part)
