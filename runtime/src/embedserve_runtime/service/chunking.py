"""Embeds texts in parts: long ones in chunks that fit, and the parts of one text with all of it in sight.

Sources: late chunking, Guenther et al. 2024; the mean of chunks weighted by their tokens, OpenAI's cookbook "Embedding
texts that are longer than the model's maximum context length".
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from embedserve_runtime.errors import EmptyInput, InputTooLong, InvalidInput
from embedserve_runtime.forward.outputs import OutputKind
from embedserve_runtime.heads.dense import normalize
from embedserve_runtime.heads.late_chunking import Span
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.service.service import InferenceService
from embedserve_runtime.service.spans import SpanWithoutTokens
from embedserve_runtime.service.types import ChunkedResult, EmbedQuery, EmbedResult


async def embed_late_chunks(service: InferenceService, query: EmbedQuery) -> EmbedResult:
    """Embed the inputs of a query as parts of one text, in their order; `dense` has a row for each.

    One forward reads all of them, and each row is the mean of the states of an input's tokens. Raises any RequestError.
    """
    text, spans = join_texts(_require_texts(query.inputs, "`late_chunking`"))
    joined = replace(query, inputs=[text], spans=[spans], outputs=OutputKind(0), truncate=False)
    try:
        result = await service.embed(joined)
    except SpanWithoutTokens as error:
        raise EmptyInput(f"input {error.number} has no token of its own in the text of all inputs") from error
    except InputTooLong as error:
        # Truncation does not help: the last inputs would have no tokens.
        rest = error.message.removeprefix("input 0 ").partition(";")[0]
        raise InputTooLong(
            f"`late_chunking` reads all inputs as one text, which {rest}; send fewer or shorter inputs"
        ) from error
    return replace(result, dense=result.chunks[0], chunks=())


def average_chunks(card: ModelCard, query: EmbedQuery, result: ChunkedResult) -> ChunkedResult:
    """Add the means of the chunks of each text, weighted by their tokens, to the result of a query.

    Means have length 1 where the chunks' vectors have.
    """
    means = np.stack(
        [
            np.average(vectors, axis=0, weights=tokens).astype(np.float32)
            for vectors, tokens in zip(result.vectors, result.tokens, strict=True)
        ]
    )
    is_normalized = card.pipeline.normalize if query.normalize is None else query.normalize
    return replace(result, means=normalize(means) if is_normalized else means)


def join_texts(texts: Sequence[str]) -> tuple[str, list[Span]]:
    """Join texts into one, and return where each of them is in it.

    Between two without white space a blank is put, so that their words stay apart. Raises EmptyInput.
    """
    parts: list[str] = []
    spans: list[Span] = []
    length = 0
    for index, text in enumerate(texts):
        if not text:
            raise EmptyInput(f"input {index} is empty")
        if parts and not (parts[-1][-1].isspace() or text[0].isspace()):
            parts.append(" ")
            length += 1
        parts.append(text)
        spans.append((length, length + len(text)))
        length += len(text)
    return "".join(parts), spans


def _require_texts(inputs: Sequence[object], what: str) -> list[str]:
    for index, item in enumerate(inputs):
        if not isinstance(item, str):
            raise InvalidInput(f"input {index} is token ids, which have no characters; {what} takes texts")
    return [item for item in inputs if isinstance(item, str)]
