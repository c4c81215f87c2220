"""Adds API keys to the OpenAPI document: middleware checks them, so FastAPI does not know of them."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from embedserve_runtime.api.routes import PROTECTED_ROUTES, route_label

_SCHEME = "ApiKey"


def describe_keys(app: FastAPI) -> None:
    """Declare the API key in the document, as optional security of the routes that check it."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        document = generate()
        schemes = document.setdefault("components", {}).setdefault("securitySchemes", {})
        schemes[_SCHEME] = {"type": "http", "scheme": "bearer"}
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                if route_label(method.upper(), path) in PROTECTED_ROUTES:
                    operation["security"] = [{_SCHEME: []}, {}]
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend the document
