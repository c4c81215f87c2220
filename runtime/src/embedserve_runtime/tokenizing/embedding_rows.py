"""Checks that every token of a text has a row in the model's table of word embeddings.

A tokenizer of more tokens than the table has rows belongs to another model, and would fail each request with such a
word. Special tokens are another matter: many repositories add a padding token that the model was not resized for and
that no text holds. They do not stop the start; a text that writes one out is refused.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Sequence

import numpy as np
from tokenizers import Tokenizer

from embedserve_runtime.errors import InvalidInput, ModelInvalid
from embedserve_runtime.forward.batch import Tokens, TokenSequence

# Not every repository marks its control tokens as special.
CONTROL_TOKEN = re.compile(r"<.*>|\[.*\]", re.DOTALL)

log = logging.getLogger(__name__)


class EmbeddingRows:
    """The rows of a table of word embeddings, which token ids must lie in.

    is_total: whether every token of the tokenizer has a row, so that no text needs a check.
    """

    def __init__(self, rows: int, *, is_total: bool = True) -> None:
        self._rows = rows
        self._is_total = is_total

    @classmethod
    def for_tokenizer(
        cls, tokenizer: Tokenizer, rows: int, always: Collection[int], max_token_id: int
    ) -> EmbeddingRows:
        """Build the check for a tokenizer. always: ids that inputs get whatever their texts are. max_token_id: the
        largest id of the tokenizer, so that its vocabulary is listed only where that lies outside.

        Raises ModelInvalid where a word, or a token of every input, has no row.
        """
        if max_token_id < rows:
            return cls(rows)
        outside = {token: number for token, number in tokenizer.get_vocab().items() if number >= rows}
        added = tokenizer.get_added_tokens_decoder()
        for token, number in outside.items():
            is_special = number in added and (added[number].special or CONTROL_TOKEN.fullmatch(token))
            if not is_special or number in always:
                raise ModelInvalid(
                    f"tokenizer.json gives ids up to {max(outside.values())}, {token!r} among them, and the model has "
                    f"word embeddings for {rows} tokens: the two do not belong together. Take tokenizer.json and the "
                    "weights from the same revision, or resize the model's word embeddings to the tokenizer"
                )
        log.warning(
            "special tokens have no word embedding; a text that writes one out is refused",
            extra={"tokens": sorted(outside), "rows": rows},
        )
        return cls(rows, is_total=False)

    def check_texts(self, sequences: Sequence[Tokens]) -> None:
        """Raise InvalidInput for the first sequence with a token that has no row."""
        if self._is_total:
            return
        for index, sequence in enumerate(sequences):
            ids = sequence.ids if isinstance(sequence, TokenSequence) else sequence
            outside = np.flatnonzero(ids >= self._rows)
            if len(outside):
                raise InvalidInput(
                    f"input {index} writes out the special token {ids[outside[0]]}, and the model has word "
                    f"embeddings for {self._rows} tokens; leave it out"
                )


def check_ids(index: int, ids: list[int], vocabulary: int) -> None:
    """Raise InvalidInput for an id array with an id outside a vocabulary of `vocabulary` tokens."""
    if min(ids) < 0 or max(ids) >= vocabulary:
        wrong = next(value for value in ids if not 0 <= value < vocabulary)
        raise InvalidInput(f"input {index}: token id {wrong} is not in the vocabulary of {vocabulary}")
