"""The routes that platforms call, which say nothing of the task: `POST /`, `/invocations`, `/vertex`.

The model and the shape of the body decide. An `inputs` object with a `source_sentence` is a similarity, everything
else is embedded; among Vertex's instances, one with `query` and `texts` asks for a re-ranker.
"""

from __future__ import annotations

import asyncio

import msgspec
from msgspec import Struct

from embedserve_runtime.api.asgi import Answer, Exchange
from embedserve_runtime.api.common import note_inputs, space_header
from embedserve_runtime.api.encoding import number_arrays, write_rows
from embedserve_runtime.api.errors import WrongShape
from embedserve_runtime.api.schemas import BodyDecoder, EmbedBody
from embedserve_runtime.api.tei import TeiRoutes, embed_query
from embedserve_runtime.api.tei_schemas import VertexBody
from embedserve_runtime.errors import EmptyInput, WrongModelKind
from embedserve_runtime.readiness import Readiness
from embedserve_runtime.service import EmbeddingService, EmbedQuery


class _Task(Struct, frozen=True):
    inputs: msgspec.Raw = msgspec.Raw(b"null")


class _Instance(Struct, frozen=True):
    query: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    texts: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_decode_task = BodyDecoder(_Task)
_decode_vertex = BodyDecoder(VertexBody)
_read_embed = msgspec.json.Decoder(EmbedBody)
_read_instance = msgspec.json.Decoder(_Instance)


class TaskRoutes:
    def __init__(self, readiness: Readiness, tei: TeiRoutes) -> None:
        self._readiness = readiness
        self._tei = tei

    async def default(self, exchange: Exchange) -> Answer:
        """The model's own task: similarity where the inputs have that shape, else vectors."""
        inputs = bytes(_decode_task(exchange).inputs).lstrip()
        if inputs.startswith(b"{"):
            return await self._tei.similarity(exchange)
        return await self._tei.embed(exchange)

    async def vertex(self, exchange: Exchange) -> Answer:
        service = self._readiness.service()
        instances = _decode_vertex(exchange).instances
        if not instances:
            raise EmptyInput("`instances` cannot be empty")
        queries = [_query_of(exchange, index, bytes(raw)) for index, raw in enumerate(instances)]
        count = sum(len(query.inputs) for query in queries)
        note_inputs(exchange, count, is_batch=True)
        service.dispatcher.check_room(count)
        predictions = await _all(service, queries)
        return Answer(b'{"predictions":[' + b",".join(predictions) + b"]}", headers=(space_header(service),))


def _query_of(exchange: Exchange, index: int, raw: bytes) -> EmbedQuery:
    try:
        kind = _read_instance.decode(raw)
        if kind.query is not msgspec.UNSET and kind.texts is not msgspec.UNSET:
            raise WrongModelKind(f"instance {index}: model is not a re-ranker model")
        return embed_query(exchange, _read_embed.decode(raw))
    except msgspec.ValidationError as error:
        raise WrongShape(f"instance {index}: {error}") from error


async def _all(service: EmbeddingService, queries: list[EmbedQuery]) -> list[bytes]:
    """Answers of all instances; the first failure ends the others."""

    async def one(query: EmbedQuery) -> bytes:
        embedded = await service.embed(query)
        return b"[" + await write_rows(embedded.dense, number_arrays) + b"]"

    tasks = [asyncio.ensure_future(one(query)) for query in queries]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
