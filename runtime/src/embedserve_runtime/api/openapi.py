"""The OpenAPI document, made from the body types.

Version 3.0.3, not 3.1, because the bundled Swagger UI reads nothing newer; so JSON Schema's "or null" becomes
`nullable` here.
"""

from __future__ import annotations

from typing import Any

import msgspec

from embedserve_runtime.api import schemas
from embedserve_runtime.api.tei import VERSION

_COMPONENTS = (
    schemas.EmbedBody,
    schemas.EmbeddingsBody,
    schemas.EmbeddingList,
    schemas.InfoBody,
    schemas.ErrorBody,
    schemas.OpenAIErrorBody,
    schemas.ProbeBody,
)
_REFERENCE = "#/components/schemas/{name}"
_VECTORS = {"type": "array", "items": {"type": "array", "items": {"type": "number", "format": "float"}}}
_TEXT = {"type": "string"}

_ERRORS = {
    400: "Empty input, or a body that is not JSON.",
    408: "The body did not arrive in time.",
    409: "The request insists on another vector space.",
    413: "The body is too large.",
    415: "The body is not declared as JSON.",
    422: "Valid JSON that cannot be served; the message says why.",
    429: "The queue is full; `Retry-After` says when to come back.",
    500: "The engine or the server failed.",
    503: "The model is not loaded yet, or the process is going down.",
    504: "The request was not answered in time.",
}


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
            "/embed": {"post": _embed()},
            "/v1/embeddings": {"post": _embeddings()},
            "/info": {"get": _get("What is served and within which limits", _json("InfoBody"), (503,))},
            "/health": {"get": _get("200 when ready", {"description": "Ready."}, (503,))},
            "/livez": {"get": _get("200 while the process answers", _json("ProbeBody"), ())},
            "/readyz": {"get": _readyz()},
            "/metrics": {"get": _get("Prometheus metrics", _content("text/plain", _TEXT), ())},
        },
        "components": {"schemas": {name: _as_3_0(schema) for name, schema in components.items()}},
    }


def _embed() -> dict[str, Any]:
    return {
        "summary": "Vectors of one or more inputs",
        "operationId": "embed",
        "parameters": [_space_header()],
        "requestBody": _request("EmbedBody", {"inputs": ["What is a vector?", "A list of numbers."]}),
        "responses": {"200": _content("application/json", _VECTORS), **_errors("ErrorBody", tuple(_ERRORS))},
    }


def _embeddings() -> dict[str, Any]:
    return {
        "summary": "Vectors, as OpenAI's API gives them",
        "operationId": "embeddings",
        "parameters": [_space_header()],
        "requestBody": _request("EmbeddingsBody", {"input": ["What is a vector?"], "model": "any"}),
        "responses": {"200": _json("EmbeddingList"), **_errors("OpenAIErrorBody", tuple(_ERRORS))},
    }


def _readyz() -> dict[str, Any]:
    operation = _get("200 when ready, else the reason", _json("ProbeBody"), ())
    operation["responses"]["503"] = _json("ProbeBody")
    return operation


def _get(summary: str, success: dict[str, Any], errors: tuple[int, ...]) -> dict[str, Any]:
    return {"summary": summary, "responses": {"200": success, **_errors("ErrorBody", errors)}}


def _errors(body: str, statuses: tuple[int, ...]) -> dict[str, Any]:
    return {str(status): {**_json(body), "description": _ERRORS[status]} for status in statuses}


def _request(name: str, example: dict[str, Any]) -> dict[str, Any]:
    content = {"schema": {"$ref": _REFERENCE.format(name=name)}, "example": example}
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
