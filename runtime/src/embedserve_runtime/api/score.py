"""The native `POST /v1/score`: how well documents answer a query, by several measures at once."""

from __future__ import annotations

import orjson

from embedserve_runtime.api.asgi import Answer, Exchange
from embedserve_runtime.api.common import note_inputs, result_lines, side_of, terms_of
from embedserve_runtime.api.encoding import number_arrays
from embedserve_runtime.api.schemas import BodyDecoder
from embedserve_runtime.api.score_schemas import ScoreBody
from embedserve_runtime.readiness import Readiness
from embedserve_runtime.service import Measure, RelevanceQuery, relevance

_decode = BodyDecoder(ScoreBody)


class ScoreRoutes:
    def __init__(self, readiness: Readiness, served_model_name: str) -> None:
        self._readiness = readiness
        self._model = orjson.dumps(served_model_name)

    async def score(self, exchange: Exchange) -> Answer:
        service = self._readiness.service()
        body = _decode(exchange)
        terms = terms_of(exchange, body.model)
        note_inputs(exchange, len(body.documents), is_batch=True)
        query = RelevanceQuery(
            body.query,
            body.documents,
            weights=_weights_of(body),
            divide=body.divide_by_weights,
            query_prompt_name=body.query_prompt_name,
            document_prompt_name=body.document_prompt_name,
            truncate=body.truncate,
            side=side_of(body.truncation_direction),
            vector_space=terms.vector_space,
            timeout=terms.timeout,
        )
        found = await relevance(service, query)
        measures = b",".join(
            b'"%b":%b' % (measure.encode(), number_arrays(scores, 0))
            for measure, scores in found.measures.items()
        )
        members = (
            b'"model":' + self._model,
            b'"vector_space":' + orjson.dumps(service.card.vector_space),
            b'"scores":' + number_arrays(found.scores, 0),
            b'"measures":{' + measures + b"}",
            b'"weights":' + orjson.dumps({str(name): weight for name, weight in found.weights.items()}),
        )
        lines = result_lines(exchange, service, found.effort)
        return Answer(b"{" + b",".join(members) + b"}", lines=lines)


def _weights_of(body: ScoreBody) -> dict[Measure, float]:
    given = {measure: getattr(body.weights, measure, None) for measure in Measure}
    return {measure: weight for measure, weight in given.items() if weight is not None}
