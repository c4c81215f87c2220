"""The routes that platforms call, which say nothing of the task: `POST /`, `/invocations`, `/vertex`.

The model and the shape of the body decide. An `inputs` object with a `source_sentence` is a similarity; among Vertex's
instances, one with `query` and `texts` is ranked; else the model does what it is for.
"""

from __future__ import annotations

import asyncio

import msgspec
from msgspec import Struct

from embedserve_runtime.api.asgi import Answer, Exchange
from embedserve_runtime.api.common import note_inputs, result_lines, space_header
from embedserve_runtime.api.errors import WrongShape
from embedserve_runtime.api.schemas import BodyDecoder, EmbedBody
from embedserve_runtime.api.tei import TeiRoutes
from embedserve_runtime.api.tei_schemas import PredictBody, RerankBody, TokensBody, VertexBody
from embedserve_runtime.api.tei_tasks import TeiTask, embed_task, predict_task, rerank_task, sparse_task
from embedserve_runtime.errors import EmptyInput
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.readiness import Readiness
from embedserve_runtime.results import Output
from embedserve_runtime.service import EmbeddingService


class _Task(Struct, frozen=True):
    inputs: msgspec.Raw = msgspec.Raw(b"null")


class _Instance(Struct, frozen=True):
    query: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    texts: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET

    @property
    def is_ranking(self) -> bool:
        return self.query is not msgspec.UNSET and self.texts is not msgspec.UNSET


_decode_task = BodyDecoder(_Task)
_decode_vertex = BodyDecoder(VertexBody)
_read_embed = msgspec.json.Decoder(EmbedBody)
_read_tokens = msgspec.json.Decoder(TokensBody)
_read_predict = msgspec.json.Decoder(PredictBody)
_read_rerank = msgspec.json.Decoder(RerankBody)
_read_instance = msgspec.json.Decoder(_Instance)


class PlatformRoutes:
    def __init__(self, readiness: Readiness, tei: TeiRoutes) -> None:
        self._readiness = readiness
        self._tei = tei

    async def default(self, exchange: Exchange) -> Answer:
        """The model's own task, or a similarity."""
        inputs = bytes(_decode_task(exchange).inputs).lstrip()
        if inputs.startswith(b"{"):
            return await self._tei.similarity(exchange)
        service = self._readiness.service()
        try:
            task = _task_of(exchange, service.card, exchange.body)
        except msgspec.ValidationError as error:
            raise WrongShape(str(error)) from error
        content, effort = await task.run(service)
        return Answer(content, lines=result_lines(exchange, service, effort))

    async def vertex(self, exchange: Exchange) -> Answer:
        service = self._readiness.service()
        instances = _decode_vertex(exchange).instances
        if not instances:
            raise EmptyInput("`instances` cannot be empty")
        tasks = [_instance(exchange, service, index, bytes(raw)) for index, raw in enumerate(instances)]
        count = sum(task.inputs for task in tasks)
        note_inputs(exchange, count, is_batch=True)
        service.dispatcher.check_room(count)
        predictions = await _all(service, tasks)
        return Answer(b'{"predictions":[' + b",".join(predictions) + b"]}", headers=(space_header(service),))


def _task_of(exchange: Exchange, card: ModelCard, body: bytes) -> TeiTask:
    """What the model is for, or a ranking where the body is one. Raises msgspec.ValidationError."""
    if card.main_output in (Output.LOGITS, Output.MULTI_VECTOR) and _read_instance.decode(body).is_ranking:
        return rerank_task(exchange, _read_rerank.decode(body))
    if card.main_output is Output.LOGITS:
        return predict_task(exchange, _read_predict.decode(body))
    if card.main_output is Output.SPARSE:
        return sparse_task(exchange, _read_tokens.decode(body))
    return embed_task(exchange, _read_embed.decode(body))


def _instance(exchange: Exchange, service: EmbeddingService, index: int, raw: bytes) -> TeiTask:
    try:
        if _read_instance.decode(raw).is_ranking:
            service.check_ranks()
        return _task_of(exchange, service.card, raw)
    except msgspec.ValidationError as error:
        raise WrongShape(f"instance {index}: {error}") from error


async def _all(service: EmbeddingService, tasks: list[TeiTask]) -> list[bytes]:
    """Answers of all instances; the first failure ends the others."""

    async def one(task: TeiTask) -> bytes:
        content, _ = await task.run(service)
        return content

    running = [asyncio.ensure_future(one(task)) for task in tasks]
    try:
        return await asyncio.gather(*running)
    finally:
        for each in running:
            each.cancel()
