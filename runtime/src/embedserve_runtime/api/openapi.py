"""The OpenAPI document, made from the body types.

Version 3.0.3, not 3.1, because the bundled Swagger UI reads nothing newer; so JSON Schema's "or null" becomes
`nullable` here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from embedserve_runtime.api import (
    cohere_schemas,
    native_schemas,
    ranking_schemas,
    schemas,
    score_schemas,
    tei_schemas,
)
from embedserve_runtime.api.tei import VERSION

_COMPONENTS = (
    schemas.EmbedBody,
    schemas.EmbeddingsBody,
    schemas.EmbeddingList,
    schemas.OpenAIModelList,
    schemas.InfoBody,
    schemas.ErrorBody,
    schemas.OpenAIErrorBody,
    schemas.MessageBody,
    schemas.ProbeBody,
    tei_schemas.TokensBody,
    tei_schemas.RerankBody,
    tei_schemas.PredictBody,
    tei_schemas.SimilarityBody,
    tei_schemas.TokenizeBody,
    tei_schemas.DecodeBody,
    tei_schemas.TokenItem,
    tei_schemas.SparseItem,
    tei_schemas.RankItem,
    tei_schemas.PredictItem,
    cohere_schemas.CohereBody,
    cohere_schemas.CohereAnswer,
    ranking_schemas.RankBody,
    ranking_schemas.RankAnswer,
    native_schemas.EncodeBody,
    native_schemas.EncodeAnswer,
    score_schemas.ScoreBody,
    score_schemas.ScoreAnswer,
)
_REFERENCE = "#/components/schemas/{name}"
_TEXT = {"type": "string"}
_NUMBERS = {"type": "array", "items": {"type": "number", "format": "float"}}
_VECTORS = {"type": "array", "items": _NUMBERS}


def _list_of(name: str) -> dict[str, Any]:
    return {"type": "array", "items": {"$ref": _REFERENCE.format(name=name)}}


_TOKENS = _list_of("TokenItem")
_ANYTHING: dict[str, Any] = {}
_TWO_TEXTS = ["What is a vector?", "A list of numbers."]

_ERRORS = {
    400: "Empty input, or a body that is not JSON.",
    401: "No API key, or a wrong one; the body is empty on TEI's routes.",
    408: "The body did not arrive in time.",
    409: "The request insists on another vector space.",
    413: "The body is too large.",
    415: "The body is not declared as JSON.",
    424: "The model is of another kind than the route.",
    422: "Valid JSON that cannot be served; the message says why.",
    429: "The queue is full; `Retry-After` says when to come back.",
    500: "The engine or the server failed.",
    503: "The model is not loaded yet, or the process is going down.",
    504: "The request was not answered in time.",
}


@dataclass(frozen=True)
class _Post:
    """A route with a body: names of schemas, or a schema for the success."""

    path: str
    summary: str
    body: str | None
    example: dict[str, Any]
    success: str | dict[str, Any]
    error: str = "ErrorBody"


_POSTS = (
    _Post(
        "/", "The model's own task, for platforms that know one path", None, {"inputs": "A text."}, _ANYTHING
    ),
    _Post("/embed", "Vectors of one or more inputs", "EmbedBody", {"inputs": _TWO_TEXTS}, _VECTORS),
    _Post(
        "/embed_all",
        "Hidden states of every token, not normalised",
        "TokensBody",
        {"inputs": "A text."},
        {"type": "array", "items": _VECTORS},
    ),
    _Post(
        "/embed_sparse",
        "Sparse vectors",
        "TokensBody",
        {"inputs": "A text."},
        {"type": "array", "items": _list_of("SparseItem")},
    ),
    _Post(
        "/predict",
        "Labels with their scores; a list of lists for a batch",
        "PredictBody",
        {"inputs": "A text."},
        {"anyOf": [_list_of("PredictItem"), {"type": "array", "items": _list_of("PredictItem")}]},
    ),
    _Post(
        "/rerank",
        "Scores of texts for a query, the best first",
        "RerankBody",
        {"query": _TWO_TEXTS[0], "texts": _TWO_TEXTS[1:]},
        _list_of("RankItem"),
    ),
    _Post(
        "/similarity",
        "Cosine similarities of sentences to one",
        "SimilarityBody",
        {"inputs": {"source_sentence": _TWO_TEXTS[0], "sentences": _TWO_TEXTS[1:]}},
        _NUMBERS,
    ),
    _Post(
        "/tokenize",
        "Tokens of texts, with their places",
        "TokenizeBody",
        {"inputs": "A text."},
        {"type": "array", "items": _TOKENS},
    ),
    _Post(
        "/decode", "Texts of token ids", "DecodeBody", {"ids": [101, 102]}, {"type": "array", "items": _TEXT}
    ),
    _Post("/vertex", "As Vertex AI calls it", None, {"instances": [{"inputs": "A text."}]}, _ANYTHING),
    _Post(
        "/v1/embeddings",
        "Vectors, as OpenAI's API gives them",
        "EmbeddingsBody",
        {"input": ["What is a vector?"], "model": "any"},
        "EmbeddingList",
        "OpenAIErrorBody",
    ),
    _Post(
        "/v2/embed",
        "Vectors, as Cohere's API gives them",
        "CohereBody",
        {"texts": _TWO_TEXTS, "input_type": "search_document", "embedding_types": ["float", "int8"]},
        "CohereAnswer",
        "MessageBody",
    ),
    *(
        _Post(
            path,
            "Scores of documents for a query, as Cohere and Jina give them",
            "RankBody",
            {"query": _TWO_TEXTS[0], "documents": _TWO_TEXTS[1:], "top_n": 1},
            "RankAnswer",
            "MessageBody",
        )
        for path in ("/v1/rerank", "/v2/rerank")
    ),
    _Post(
        "/v1/encode",
        "Vectors, tokens and hidden states from one forward pass",
        "EncodeBody",
        {"inputs": ["A text."], "outputs": ["dense", "tokens"], "dtype": "float16", "encoding": "base64"},
        "EncodeAnswer",
        "MessageBody",
    ),
    _Post(
        "/v1/score",
        "How well documents answer a query, by several measures at once",
        "ScoreBody",
        {"query": _TWO_TEXTS[0], "documents": _TWO_TEXTS[1:]},
        "ScoreAnswer",
        "MessageBody",
    ),
)


def document() -> dict[str, Any]:
    _, components = msgspec.json.schema_components(_COMPONENTS, ref_template=_REFERENCE)
    return {
        "openapi": "3.0.3",
        "info": {
            "title": "Embedserve",
            "version": VERSION,
            "description": "Vectors of texts from one embedding model.",
            "license": {"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
        },
        "paths": {
            **{post.path: {"post": _operation(post)} for post in _POSTS},
            "/v1/models": {
                "get": _get("The model served", _json("OpenAIModelList"), (401, 503), "OpenAIErrorBody")
            },
            "/info": {"get": _get("What is served and within which limits", _json("InfoBody"), (401, 503))},
            "/health": {"get": _get("200 when ready", {"description": "Ready."}, (503,))},
            "/livez": {"get": _get("200 while the process answers", _json("ProbeBody"), ())},
            "/readyz": {"get": _readyz()},
            "/metrics": {"get": _get("Prometheus metrics", _content("text/plain", _TEXT), ())},
        },
        "components": {
            "schemas": {name: _as_3_0(schema) for name, schema in components.items()},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(post: _Post) -> dict[str, Any]:
    success = post.success
    answer = _json(success) if isinstance(success, str) else _content("application/json", success)
    if post.path == "/v1/encode":
        answer["content"]["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
    return {
        "summary": post.summary,
        "operationId": post.path.strip("/").replace("/", "_") or "default",
        "parameters": [_space_header(), _timeout_header()],
        "requestBody": _request(post.body, post.example),
        "responses": {"200": answer, **_errors(post.error, tuple(_ERRORS))},
        "security": [{"key": []}, {}],
    }


def _readyz() -> dict[str, Any]:
    operation = _get("200 when ready, else the reason", _json("ProbeBody"), ())
    operation["responses"]["503"] = _json("ProbeBody")
    return operation


def _get(
    summary: str, success: dict[str, Any], errors: tuple[int, ...], body: str = "ErrorBody"
) -> dict[str, Any]:
    return {"summary": summary, "responses": {"200": success, **_errors(body, errors)}}


def _errors(body: str, statuses: tuple[int, ...]) -> dict[str, Any]:
    return {str(status): {**_json(body), "description": _ERRORS[status]} for status in statuses}


def _request(name: str | None, example: dict[str, Any]) -> dict[str, Any]:
    schema = {"$ref": _REFERENCE.format(name=name)} if name else {"type": "object"}
    content = {"schema": schema, "example": example}
    return {"required": True, "content": {"application/json": content}}


def _json(name: str) -> dict[str, Any]:
    return _content("application/json", {"$ref": _REFERENCE.format(name=name)})


def _content(media_type: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": "Success.", "content": {media_type: {"schema": schema}}}


def _space_header() -> dict[str, Any]:
    return {
        "name": "X-Embedserve-Vector-Space",
        "in": "header",
        "required": False,
        "description": "Identity of the vector space that the client expects; another one gives 409.",
        "schema": _TEXT,
    }


def _timeout_header() -> dict[str, Any]:
    return {
        "name": "X-Embedserve-Timeout",
        "in": "header",
        "required": False,
        "description": "Seconds after which the client wants no answer any more; then 504, at once if too few.",
        "schema": {"type": "number", "minimum": 0, "exclusiveMinimum": True},
    }


def _as_3_0(schema: Any) -> Any:
    """JSON Schema 2020-12 as msgspec writes it, in the words of OpenAPI 3.0."""
    if isinstance(schema, list):
        return [_as_3_0(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: _as_3_0(value) for key, value in schema.items()}
    if isinstance(result.get("enum"), list) and None in result["enum"]:
        result["enum"] = [*(value for value in result["enum"] if value is not None), None]
        result["nullable"] = True
    choices = result.get("anyOf")
    if choices and {"type": "null"} in choices:
        rest = [choice for choice in choices if choice != {"type": "null"}]
        result["nullable"] = True
        if len(rest) == 1 and "$ref" not in rest[0]:
            del result["anyOf"]
            return {**rest[0], **result}
        result["anyOf"] = rest
    return result
