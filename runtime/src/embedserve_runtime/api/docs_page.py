"""`/docs`: Swagger UI from the installed package, so that the page works without internet."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

import orjson

from embedserve_runtime.api.asgi import Answer, Exchange
from embedserve_runtime.api.openapi import document

_ASSETS = {
    "swagger-ui.css": b"text/css; charset=utf-8",
    "swagger-ui-bundle.js": b"text/javascript; charset=utf-8",
    "favicon-32x32.png": b"image/png",
}
_DAY = (b"cache-control", b"public, max-age=86400")

_PAGE = b"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Embedserve API</title>
<link rel="icon" type="image/png" href="docs/favicon-32x32.png">
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<div id="ui"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script>SwaggerUIBundle({url: "openapi.json", dom_id: "#ui", deepLinking: true})</script>
</body>
</html>
"""

Route = Callable[[Exchange], Awaitable[Answer]]


@cache
def docs_routes() -> Mapping[str, Route]:
    """Handlers by path; TEI has the document at the second one."""
    described = _fixed(Answer(orjson.dumps(document())))
    routes = {
        "/docs": _fixed(Answer(_PAGE, content_type=b"text/html; charset=utf-8")),
        "/openapi.json": described,
        "/api-doc/openapi.json": described,
    }
    folder = _swagger_folder()
    for name, content_type in _ASSETS.items():
        content = folder.joinpath(name).read_bytes()
        routes[f"/docs/{name}"] = _fixed(Answer(content, content_type=content_type, headers=(_DAY,)))
    return routes


def _fixed(answer: Answer) -> Route:
    async def route(_: Exchange) -> Answer:
        return answer

    return route


def _swagger_folder() -> Traversable:
    """The one `swagger-ui-<version>` folder of the package; its version is not ours to know."""
    vendor = files("swagger_ui_bundle").joinpath("vendor")
    return max(
        (child for child in vendor.iterdir() if child.name.startswith("swagger-ui-")),
        key=lambda child: child.name,
    )
