"""Splits long texts into chunks that each fit into the model."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from embedserve_runtime.errors import EmptyInput, InputTooLong
from embedserve_runtime.forward.arrays import Int32Array
from embedserve_runtime.forward.batch import Tokens, TokenSequence
from embedserve_runtime.tokenizing.backend import TokenizerBackend
from embedserve_runtime.tokenizing.length_limit import LengthLimit

MIN_CHUNK_SHARE = 8
"""A prompt leaves at least this fraction, one eighth, of a sequence to the text. One that fills nearly all of it would
make a chunk, as long as the model takes, of every few tokens."""


class TextChunk(Struct, frozen=True, eq=False):
    """A part of a text as a sequence of its own.

    ids: int32, with prompt and special tokens. tokens: the number of tokens of the text itself. start, stop: the part
    of the text that they come from, in code points. pool_start, query, task: the same as in `TokenSequence`.
    """

    ids: Int32Array
    tokens: int
    start: int
    stop: int
    pool_start: int = 0
    is_query_role: bool = False
    task: int = 0

    @property
    def sequence(self) -> Tokens:
        if not self.pool_start and not self.is_query_role and not self.task:
            return self.ids
        return TokenSequence(
            self.ids, pool_start=self.pool_start, is_query_role=self.is_query_role, task=self.task
        )


def split_text(
    backend: TokenizerBackend, limit: LengthLimit, index: int, text: str, prompt: str
) -> list[TextChunk]:
    """Split a text into as few chunks as hold its tokens, in their order, each with the prompt before it.

    The tokens are those of prompt + text as a whole; all chunks but the last are full. The text is tokenized whole: its
    length has to be bounded before. Raises EmptyInput and InputTooLong, naming the input by its index.
    """
    encoding = backend.tokenizer.encode(prompt + text, add_special_tokens=False)
    ids = np.array(encoding.ids, dtype=np.int32)
    stops = [stop for _, stop in encoding.offsets]
    prompt_tokens = next((number for number, stop in enumerate(stops) if stop > len(prompt)), len(ids))
    size = limit.room - prompt_tokens
    if prompt_tokens == len(ids):
        raise EmptyInput(f"input {index} has no tokens after normalizing")
    if size < max(1, limit.room // MIN_CHUNK_SHARE):
        space = "no room" if size < 1 else f"room for {size} only"
        raise InputTooLong(
            f"input {index}: a prompt of {prompt_tokens} tokens leaves {space} for a text in the {limit.max_length} "
            "that the model takes; shorten the prompt"
        )
    chunks = []
    for first in range(prompt_tokens, len(ids), size):
        part = ids[first : first + size]
        last = first + len(part) - 1
        chunks.append(
            TextChunk(
                np.concatenate((backend.head, ids[:prompt_tokens], part, backend.tail)),
                len(part),
                max(0, encoding.offsets[first][0] - len(prompt)),
                stops[last] - len(prompt),
            )
        )
    return chunks
