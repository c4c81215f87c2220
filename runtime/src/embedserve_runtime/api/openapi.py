"""What FastAPI cannot know of the OpenAPI document: API keys are asked for by middleware."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from embedserve_runtime.api.routes import KEYED_ROUTES, label_of

_SCHEME = "ApiKey"


def describe_keys(app: FastAPI) -> None:
    """Have the document name the API key, as something that a route may ask for."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        document = generate()
        schemes = document.setdefault("components", {}).setdefault("securitySchemes", {})
        schemes[_SCHEME] = {"type": "http", "scheme": "bearer"}
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                if label_of(method.upper(), path) in KEYED_ROUTES:
                    operation["security"] = [{_SCHEME: []}, {}]
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend the document
