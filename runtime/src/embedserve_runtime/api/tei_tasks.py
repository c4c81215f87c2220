"""The tasks of TEI's API, apart from the path that they come by: `/embed`, `/embed_sparse`, `/rerank`, `/predict`.

A task is made of a body first, so that a request of several can be refused before any of it runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import numpy as np
import orjson
from msgspec import Struct

from embedserve_runtime.api.asgi import Exchange
from embedserve_runtime.api.common import note_inputs, read_inputs, side_of, terms_of
from embedserve_runtime.api.encoding import number_arrays, numbers, sparse_items, write_rows
from embedserve_runtime.api.errors import WrongShape
from embedserve_runtime.api.quick import Asked
from embedserve_runtime.api.schemas import EmbedBody
from embedserve_runtime.api.tei_schemas import PredictBody, RerankBody, TokensBody
from embedserve_runtime.errors import EmptyInput
from embedserve_runtime.results import Output
from embedserve_runtime.service import Effort, EmbeddingService, EmbedQuery, Pair, Scored, ScoreQuery, rank


class TeiTask(Struct, frozen=True):
    """`run` gives the answer's JSON and what it took; raises any RequestError. inputs: how many there are."""

    inputs: int
    run: Callable[[EmbeddingService], Awaitable[tuple[bytes, Effort]]]


def asked_embed(exchange: Exchange, body: EmbedBody) -> Asked:
    terms = terms_of(exchange)
    query = EmbedQuery(
        read_inputs(exchange, body.inputs, "inputs"),
        truncate=body.truncate,
        side=side_of(body.truncation_direction),
        prompt_name=body.prompt_name,
        normalize=body.normalize is not False,
        dimensions=body.dimensions,
        vector_space=terms.vector_space,
        timeout=terms.timeout,
    )
    return Asked(query, number_arrays, _bare)


def _bare(rows: bytes, _: Effort) -> bytes:
    return rows


def embed_task(exchange: Exchange, body: EmbedBody) -> TeiTask:
    asked = asked_embed(exchange, body)

    async def run(service: EmbeddingService) -> tuple[bytes, Effort]:
        embedded = await service.embed(asked.query)
        rows = await write_rows(embedded.dense, asked.writer)
        return asked.wrap(rows, embedded.effort), embedded.effort

    return TeiTask(len(asked.query.inputs), run)


def sparse_task(exchange: Exchange, body: TokensBody) -> TeiTask:
    query = inputs_query(exchange, body, Output.SPARSE)

    async def run(service: EmbeddingService) -> tuple[bytes, Effort]:
        embedded = await service.embed(query)
        return await sparse_items(embedded.sparse), embedded.effort

    return TeiTask(len(query.inputs), run)


def rerank_task(exchange: Exchange, body: RerankBody) -> TeiTask:
    note_inputs(exchange, len(body.texts), is_batch=True)
    if not body.texts:
        raise EmptyInput("`texts` cannot be empty")
    query = _score_query(exchange, body, [Pair(body.query, text) for text in body.texts], ranks=True)

    async def run(service: EmbeddingService) -> tuple[bytes, Effort]:
        scored = await rank(service, query)
        places = scored.ranking()
        items = (
            b'{"index":%d,"score":%b%b}'
            % (place, score, b',"text":' + orjson.dumps(body.texts[place]) if body.return_text else b"")
            for place, score in zip(places.tolist(), numbers(scored.scores[places, 0]), strict=True)
        )
        return b"[" + b",".join(items) + b"]", scored.effort

    return TeiTask(len(body.texts), run)


def predict_task(exchange: Exchange, body: PredictBody) -> TeiTask:
    inputs = body.inputs
    is_batch = isinstance(inputs, list) and not all(isinstance(item, str) for item in inputs)
    items = [_item_of(item) for item in inputs] if is_batch else [_item_of(inputs)]
    note_inputs(exchange, len(items), is_batch=is_batch)
    query = _score_query(exchange, body, items, ranks=False)

    async def run(service: EmbeddingService) -> tuple[bytes, Effort]:
        scored = await service.score(query)
        content = b",".join(_predictions(scored))
        return b"[" + content + b"]" if is_batch else content, scored.effort

    return TeiTask(len(items), run)


def inputs_query(exchange: Exchange, body: TokensBody, outputs: Output) -> EmbedQuery:
    terms = terms_of(exchange)
    return EmbedQuery(
        inputs=read_inputs(exchange, body.inputs, "inputs"),
        truncate=body.truncate,
        side=side_of(body.truncation_direction),
        prompt_name=body.prompt_name,
        vector_space=terms.vector_space,
        timeout=terms.timeout,
        outputs=outputs,
    )


def _score_query(
    exchange: Exchange, body: RerankBody | PredictBody, items: Sequence[str | Pair], *, ranks: bool
) -> ScoreQuery:
    terms = terms_of(exchange)
    return ScoreQuery(
        items,
        ranks=ranks,
        raw=body.raw_scores,
        truncate=body.truncate,
        side=side_of(body.truncation_direction),
        vector_space=terms.vector_space,
        timeout=terms.timeout,
    )


def _item_of(value: str | list[str] | list[str | list[str]]) -> str | Pair:
    """TEI's shapes of one input: a text, or an array of one text or of two."""
    match value:
        case str(text) | [str(text)]:
            return text
        case [str(first), str(second)]:
            return Pair(first, second)
        case _:
            raise WrongShape(
                "`inputs` must be a text, a pair of texts, or a list of arrays of one text or two"
            )


def _predictions(scored: Scored) -> list[bytes]:
    """A list of labels for each item, the likeliest first."""
    labels = [orjson.dumps(label) for label in scored.labels]
    written = []
    for row in scored.scores:
        order = np.argsort(-row, kind="stable")
        items = (
            b'{"score":%b,"label":%b}' % (score, labels[column])
            for column, score in zip(order.tolist(), numbers(row[order]), strict=True)
        )
        written.append(b"[" + b",".join(items) + b"]")
    return written
