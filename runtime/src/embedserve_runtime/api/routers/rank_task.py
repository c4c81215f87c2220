"""Runs the task of ranking, independent of its path: the shape of the body decides the dialect of the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import orjson

from embedserve_runtime.api.context import RequestContext
from embedserve_runtime.api.encoding import format_numbers
from embedserve_runtime.api.errors import WrongShape
from embedserve_runtime.api.inputs import merge_aliases, read_untyped_options, record_inputs, truncation_side
from embedserve_runtime.api.routers.tei_tasks import TeiTask
from embedserve_runtime.api.schemas.base import to_json
from embedserve_runtime.api.schemas.cohere import CohereVersion
from embedserve_runtime.api.schemas.ranking import (
    RerankDocument,
    RerankMeta,
    RerankRequest,
    RerankResponse,
    RerankResult,
    RerankTokens,
    RerankUnits,
    RerankUsage,
)
from embedserve_runtime.errors import EmptyInput
from embedserve_runtime.service import InferenceService, Pair, RequestUsage, ScoreQuery, ScoreResult, rank

Version = Literal["1", "2"]

DOCUMENTS_PER_UNIT = 100


def build_rank_task(context: RequestContext, body: RerankRequest, version: Version = "2") -> TeiTask:
    """Create the task of a body. version: the one of Cohere's API that the answer names. Raises RequestError."""
    texts = _read_texts(body)
    record_inputs(context, len(texts), is_batch=True)
    if not texts:
        raise EmptyInput(f"`{'documents' if body.texts is None else 'texts'}` cannot be empty")
    options = read_untyped_options(context, body.model)
    max_results = merge_aliases(top_n=body.top_n, top_k=body.top_k)
    returns_texts = merge_aliases(return_documents=body.return_documents, return_text=body.return_text)
    truncate = merge_aliases(truncate=body.truncate, truncation=body.truncation)
    is_tei = body.documents is None
    direction = merge_aliases(
        truncation_direction=body.truncation_direction and body.truncation_direction.lower(),
        truncation_side=body.truncation_side,
    )
    # Cohere and Jina always cut; on the tokenizer's own side, since they have no field for it.
    takes_own_side = not is_tei and direction is None

    async def run(service: InferenceService) -> tuple[bytes, RequestUsage]:
        service.check_room(len(texts))  # before a pair is made for each text
        query = ScoreQuery(
            [Pair(body.query, text) for text in texts],
            ranks=True,
            raw=bool(body.raw_scores),
            truncate=truncate if is_tei or truncate is not None else True,
            side=None if takes_own_side else truncation_side(direction),
            instruction=body.instruction,
            query_tokens=body.max_tokens_per_query,
            document_tokens=body.max_tokens_per_doc,
            vector_space=options.vector_space,
            timeout=options.timeout,
        )
        scored = await rank(service, query)
        indices = scored.rank_items()[:max_results].tolist()
        if is_tei:
            return _write_tei(scored, indices, texts if returns_texts else None), scored.usage
        answer = _build_answer(context, scored, indices, version)
        if returns_texts:
            answer = _add_documents(answer, body)
        return to_json(answer), scored.usage

    return TeiTask(len(texts), run)


def _read_texts(body: RerankRequest) -> list[str]:
    """Return the text that is ranked of each document. Raises WrongShape."""
    if (body.texts is None) == (body.documents is None):
        raise WrongShape("give either `texts` or `documents`")
    if body.documents is None:
        return body.texts or []
    fields = body.rank_fields or ["text"]
    return [
        item if isinstance(item, str) else _join_fields(index, item, fields)
        for index, item in enumerate(body.documents)
    ]


def _join_fields(index: int, document: RerankDocument, fields: Sequence[str]) -> str:
    """Join the values of fields, each on a line. Raises WrongShape, naming document and field."""
    values = [document.text if name == "text" else (document.model_extra or {}).get(name) for name in fields]
    for name, value in zip(fields, values, strict=True):
        if not isinstance(value, str | int | float):
            raise WrongShape(f"`documents.{index}.{name}` must be a text or a number: it is ranked")
    return "\n".join(map(str, values))


def _write_tei(scored: ScoreResult, indices: Sequence[int], texts: Sequence[str] | None) -> bytes:
    items = (
        b'{"index":%d,"score":%b%b}'
        % (index, score, b"" if texts is None else b',"text":' + orjson.dumps(texts[index]))
        for index, score in zip(indices, format_numbers(scored.scores[indices, 0]), strict=True)
    )
    return b"[" + b",".join(items) + b"]"


def _build_answer(
    context: RequestContext, scored: ScoreResult, indices: Sequence[int], version: Version
) -> RerankResponse:
    tokens, count = scored.usage.tokens, len(scored.scores)
    return RerankResponse(
        id=context.request_id,
        model=context.model_name,
        results=[
            RerankResult(index=index, relevance_score=float(scored.scores[index, 0])) for index in indices
        ],
        meta=RerankMeta(
            api_version=CohereVersion(version=version),
            billed_units=RerankUnits(search_units=-(-count // DOCUMENTS_PER_UNIT)),
            tokens=RerankTokens(input_tokens=tokens),
        ),
        usage=RerankUsage(prompt_tokens=tokens, total_tokens=tokens),
    )


def _add_documents(answer: RerankResponse, body: RerankRequest) -> RerankResponse:
    documents = body.documents or []
    results = [
        result.model_copy(update={"document": _to_object(documents[result.index])})
        for result in answer.results
    ]
    return answer.model_copy(update={"results": results})


def _to_object(document: str | RerankDocument) -> RerankDocument:
    return RerankDocument(text=document) if isinstance(document, str) else document
