"""The dialect of Cohere: `POST /v2/embed`."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import orjson

from embedserve_runtime.api.asgi import Answer, Exchange
from embedserve_runtime.api.cohere_schemas import CohereBody, CohereMeta, CohereUnits, CohereVersion
from embedserve_runtime.api.common import note_inputs, result_lines, terms_of
from embedserve_runtime.api.encoding import RowWriter, base64_rows, rows_in, write_rows
from embedserve_runtime.api.errors import WrongShape
from embedserve_runtime.api.schemas import BodyDecoder
from embedserve_runtime.errors import InvalidInput
from embedserve_runtime.heads.quantize import Precision
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.readiness import Readiness
from embedserve_runtime.service import EmbedQuery, Role

_decode = BodyDecoder(CohereBody)

# Names that models give the prompt for each input type; the first that the model has is taken.
PROMPT_NAMES = {
    "search_query": ("search_query", "query"),
    "search_document": ("search_document", "document", "passage"),
    "classification": ("classification",),
    "clustering": ("clustering",),
}
ROLES: Mapping[str, Role] = {"search_query": "query", "search_document": "document"}
_WRITERS: dict[str, RowWriter] = {
    "float": rows_in(Precision.FLOAT32),
    "int8": rows_in(Precision.INT8),
    "uint8": rows_in(Precision.UINT8),
    "binary": rows_in(Precision.BINARY),
    "ubinary": rows_in(Precision.UBINARY),
    "base64": base64_rows(Precision.FLOAT32),
}


class CohereRoutes:
    def __init__(self, readiness: Readiness) -> None:
        self._readiness = readiness

    async def embed(self, exchange: Exchange) -> Answer:
        service = self._readiness.service()
        body = _decode(exchange)
        terms = terms_of(exchange, body.model)
        texts = _texts_of(body)
        note_inputs(exchange, len(texts), is_batch=True)
        if body.max_tokens is not None and body.max_tokens < service.max_length:
            raise InvalidInput(f"`max_tokens` below the model's own {service.max_length} is not supported")
        name, prompt = prompt_for(body.input_type, service.card)
        query = EmbedQuery(
            inputs=texts,
            truncate=body.truncate != "NONE",
            side="left" if body.truncate == "START" else "right",
            prompt_name=name,
            prompt=prompt,
            normalize=True,
            dimensions=body.output_dimension,
            vector_space=terms.vector_space,
            timeout=terms.timeout,
            role=ROLES.get(body.input_type or ""),
        )
        embedded = await service.embed(query)
        members = [
            b'"%b":%b' % (kind.encode(), await write_rows(embedded.dense, _WRITERS[kind]))
            for kind in dict.fromkeys(body.embedding_types or ["float"])
        ]
        meta = CohereMeta(CohereVersion("2"), CohereUnits(embedded.effort.tokens))
        answer = b'{"id":%b,"embeddings":{%b},"texts":%b,"meta":%b,"response_type":"embeddings_by_type"}' % (
            orjson.dumps(exchange.request_id),
            b",".join(members),
            msgspec.json.encode(texts),
            msgspec.json.encode(meta),
        )
        return Answer(answer, lines=result_lines(exchange, service, embedded.effort))


def prompt_for(input_type: str | None, card: ModelCard) -> tuple[str | None, str | None]:
    """Name of the prompt, or its text.

    Without a prompt for the type the default one applies, unless that is the prompt of another type: a query's
    prompt before a document would be worse than none.
    """
    if input_type is None:
        return None, None
    if input_type not in PROMPT_NAMES:
        raise InvalidInput("images cannot be embedded: the model takes text")
    for name in PROMPT_NAMES[input_type]:
        if name in card.prompts:
            return name, None
    others = {name for names in PROMPT_NAMES.values() for name in names}
    return None, "" if card.default_prompt in others else None


def prompt_of_role(
    role: Role | None, name: str | None, text: str | None, card: ModelCard
) -> tuple[str | None, str | None]:
    """Name of the prompt, or its text: the one asked for, else that of what the inputs are."""
    if role is None or name is not None or text is not None:
        return name, text
    return prompt_for(f"search_{role}", card)


def _texts_of(body: CohereBody) -> list[str]:
    if body.images:
        raise InvalidInput("images cannot be embedded: the model takes text")
    if (body.texts is None) == (body.inputs is None):
        raise WrongShape("give either `texts` or `inputs`")
    if body.inputs is None:
        return body.texts or []
    texts = []
    for index, item in enumerate(body.inputs):
        if any(part.type != "text" or part.text is None for part in item.content):
            raise InvalidInput(f"input {index}: only content of type text can be embedded")
        texts.append(" ".join(part.text or "" for part in item.content))
    return texts
