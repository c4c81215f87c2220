"""Finds the tokens that the spans of a request cover."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from embedserve_runtime.errors import InvalidInput, WrongModelKind
from embedserve_runtime.forward.outputs import OutputKind
from embedserve_runtime.heads.late_chunking import Span, find_tokens_in_span
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.pipeline import Pooling
from embedserve_runtime.service.roles import select_card
from embedserve_runtime.service.types import EmbedQuery
from embedserve_runtime.tokenizing import Token

# The token numbers of each span of one input.
SpanTokens = Sequence[NDArray[np.intp]]
# Spans of one request; each gives a vector.
MAX_SPANS = 16_384


class SpanWithoutTokens(InvalidInput):
    """A span of an input covers no token. number: that of the span in its input."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number


def check_spans(card: ModelCard, query: EmbedQuery) -> None:
    """Check that the spans can be pooled. Raises InvalidInput, WrongModelKind."""
    if query.spans is None:
        return
    pipeline = select_card(card, query).pipeline
    if OutputKind.HIDDEN not in card.outputs or pipeline.pooling != (Pooling.MEAN,) or pipeline.dense:
        raise WrongModelKind(
            "parts of a text (`spans`, `late_chunking`) are pooled by the mean of hidden states; this model makes its "
            "vectors in another way"
        )
    if len(query.spans) != len(query.inputs):
        raise InvalidInput(
            f"`spans` needs a list for each of {len(query.inputs)} inputs, got {len(query.spans)}"
        )
    if sum(map(len, query.spans)) > MAX_SPANS:
        raise InvalidInput(f"one request may have {MAX_SPANS} spans, got {sum(map(len, query.spans))}")
    for index, (text, spans) in enumerate(zip(query.inputs, query.spans, strict=True)):
        if not isinstance(text, str):
            raise InvalidInput(
                f"input {index} is token ids, which have no characters; send text to use `spans`"
            )
        for start, end in spans:
            if not 0 <= start < end <= len(text):
                raise InvalidInput(
                    f"input {index}: the span from {start} to {end} does not lie in its {len(text)} characters"
                )


def find_span_tokens(
    tokens: Sequence[Token], spans: Sequence[Span], prompt_length: int, index: int
) -> SpanTokens:
    """Find the tokens of each span of an input.

    tokens: those of the input, with offsets in prompt + input. Raises SpanWithoutTokens.
    """
    offsets = np.array([_input_offsets(token, prompt_length) for token in tokens], dtype=np.int32).reshape(
        -1, 2
    )
    token_ranges = [find_tokens_in_span(offsets, span) for span in spans]
    for number, (span, span_tokens) in enumerate(zip(spans, token_ranges, strict=True)):
        if not len(span_tokens):
            raise SpanWithoutTokens(
                f"input {index}: no token lies in the span from {span[0]} to {span[1]}; it is blank, or the text was "
                "cut before it",
                number,
            )
    return token_ranges


def _input_offsets(token: Token, prompt_length: int) -> tuple[int, int]:
    if token.start is None or token.stop is None or token.stop <= prompt_length:
        return -1, -1
    return max(0, token.start - prompt_length), token.stop - prompt_length
