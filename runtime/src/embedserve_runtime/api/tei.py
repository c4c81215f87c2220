"""The dialect of Text Embeddings Inference: `POST /embed` and `GET /info`."""

from __future__ import annotations

from importlib.metadata import version

import msgspec

from embedserve_runtime.api.asgi import Answer, Exchange, Header
from embedserve_runtime.api.encoding import number_arrays, write_rows
from embedserve_runtime.api.schemas import (
    BodyDecoder,
    EmbedBody,
    EmbeddingModelType,
    InfoBody,
    ModelType,
    inputs_of,
)
from embedserve_runtime.readiness import Readiness
from embedserve_runtime.service import TOKENIZER_THREADS, Embedded, EmbeddingService, EmbedQuery

VECTOR_SPACE = b"x-embedserve-vector-space"
VERSION = version("embedserve-runtime")

_decode = BodyDecoder(EmbedBody)
# Where TEI calls a pooling by another name.
_TEI_POOLING = {"last": "last_token"}


class TeiRoutes:
    def __init__(self, readiness: Readiness, served_model_name: str) -> None:
        self._readiness = readiness
        self._name = served_model_name

    async def embed(self, exchange: Exchange) -> Answer:
        service = self._readiness.service()
        body = _decode(exchange)
        query = EmbedQuery(
            inputs=inputs_of(body.inputs, "inputs"),
            truncate=body.truncate,
            side="left" if body.truncation_direction in ("Left", "left") else "right",
            prompt_name=body.prompt_name,
            normalize=body.normalize is not False,
            dimensions=body.dimensions,
            vector_space=expected_space(exchange),
        )
        embedded = await service.embed(query)
        rows = await write_rows(embedded.vectors, number_arrays)
        return Answer(b"[" + rows + b"]", headers=result_headers(service, embedded))

    async def info(self, _: Exchange) -> Answer:
        service = self._readiness.service()
        card, batching = service.card, service.batching
        limits = service.dispatcher.limits
        info = InfoBody(
            model_id=card.source,
            model_sha=card.revision,
            model_dtype="float32",
            served_model_name=self._name,
            model_type=ModelType(
                EmbeddingModelType(_TEI_POOLING.get(card.pipeline.pooling_name, card.pipeline.pooling_name))
            ),
            max_concurrent_requests=limits.queue_inputs,
            max_input_length=service.max_length,
            max_batch_tokens=limits.batch_tokens,
            max_batch_requests=None,
            max_client_batch_size=batching.max_client_batch_size or limits.queue_inputs,
            auto_truncate=batching.auto_truncate,
            tokenization_workers=TOKENIZER_THREADS,
            version=VERSION,
            vector_space=card.vector_space,
            dimensions=card.pipeline.dimensions,
            full_dimensions=card.pipeline.full_dimensions,
            normalize=card.pipeline.normalize,
            prompts=list(card.prompts),
            default_prompt=card.default_prompt,
        )
        return Answer(msgspec.json.encode(info), headers=((VECTOR_SPACE, card.vector_space.encode()),))


def expected_space(exchange: Exchange) -> str | None:
    """The vector space that the client insists on, if it does."""
    value = exchange.headers.get(VECTOR_SPACE)
    return value.decode("latin-1") if value is not None else None


def result_headers(service: EmbeddingService, embedded: Embedded) -> tuple[Header, ...]:
    """The vector space, and TEI's counters and times in whole milliseconds."""
    timings = embedded.timings
    total = b"%d" % (timings.total * 1000)
    return (
        (VECTOR_SPACE, service.card.vector_space.encode()),
        (b"x-compute-characters", b"%d" % embedded.characters),
        (b"x-compute-tokens", b"%d" % embedded.tokens),
        (b"x-compute-time", total),
        (b"x-total-time", total),
        (b"x-tokenization-time", b"%d" % (timings.tokenize * 1000)),
        (b"x-queue-time", b"%d" % (timings.queue * 1000)),
        (b"x-inference-time", b"%d" % (timings.engine * 1000)),
    )
