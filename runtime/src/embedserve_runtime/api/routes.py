"""Lists the paths of the API, with their metric labels, access and error dialects."""

from __future__ import annotations

from typing import Literal

Dialect = Literal["tei", "openai", "message"]
"""The shape of a JSON error. message: Cohere's, which the native routes share."""

OTHER = "other"
"""Metric label of all other paths: those of scanners must not become labels."""
FORWARDED = "forwarded"
"""Metric label of requests that are forwarded to another vector space."""

EMBEDDING_ROUTES = (
    "/",
    "/embed",
    "/embed_all",
    "/embed_sparse",
    "/predict",
    "/rerank",
    "/similarity",
    "/v1/embeddings",
    "/v1/encode",
    "/v1/rerank",
    "/v1/score",
    "/v2/embed",
    "/v2/rerank",
    "/vertex",
)
"""Routes that run the model; the `te_*` metrics count these only."""
SERVICE_ROUTES = frozenset((*EMBEDDING_ROUTES, "/tokenize", "/decode"))
"""Routes with a body that the model's service answers, all of them by POST."""
PROTECTED_ROUTES = SERVICE_ROUTES | {"/v1/models", "/info"}
"""Routes that need an API key where there are keys."""
PROBE_ROUTES = ("/health", "/livez", "/readyz", "/metrics")
MANAGEMENT_ROUTES = ("/current", "/selfcheck")
ROUTES = (
    *EMBEDDING_ROUTES,
    "/tokenize",
    "/decode",
    "/v1/models",
    "/info",
    *PROBE_ROUTES,
    *MANAGEMENT_ROUTES,
    FORWARDED,
    OTHER,
)
NEVER_FORWARDED_PATHS = frozenset((*PROBE_ROUTES, "/ping"))
"""Paths about this process, which are not forwarded whatever the service's name stands for."""

RPC_EMBEDDING_SERVICES = ("embedserve.v1.Embeddings", "tei.v1.Embed", "tei.v1.Predict", "tei.v1.Rerank")
RPC_SERVICES = (*RPC_EMBEDDING_SERVICES, "tei.v1.Info", "tei.v1.Tokenize")
"""Metric labels of gRPC calls: their service, not their method."""

SERVING_WORK = frozenset(("POST", route) for route in SERVICE_ROUTES)
MANAGEMENT_WORK = frozenset({("PUT", "/current")})
"""Methods and routes of the requests that count as work: those with a body, which is read for no others."""

ROUTE_ALIASES = {"/embeddings": "/v1/embeddings", "/invocations": "/", "/ping": "/health"}
"""Other paths of some routes."""
_KNOWN = frozenset(ROUTES) - {FORWARDED, OTHER}
_MESSAGE_PATHS = ("/v1/encode", "/v1/rerank", "/v1/score")
_OPENAI_PREFIXES = ("/v1/", "/embeddings/")
_MESSAGE_PREFIX = "/v2/"


def route_label(method: str, path: str) -> str:
    """Return the metric label of a request."""
    if path == "/":
        return "/" if method == "POST" else "/health"
    if path.startswith("/v1/models/"):
        return "/v1/models"
    label = ROUTE_ALIASES.get(path, path)
    return label if label in _KNOWN else OTHER


def error_dialect(path: str) -> Dialect:
    """Return the dialect of errors on this path, which need not exist: below `/v1` mostly clients of OpenAI call."""
    path = f"{_merge_slashes(path)}/"
    if path.startswith(_MESSAGE_PREFIX) or path[:-1] in _MESSAGE_PATHS:
        return "message"
    return "openai" if path.startswith(_OPENAI_PREFIXES) else "tei"


def find_similar_path(path: str) -> str | None:
    """Return the path of the API that an unknown one ends with, but for slashes; None where it ends with none."""
    merged = _merge_slashes(path)
    routes = (*_KNOWN, *ROUTE_ALIASES)
    return max((route for route in routes if route != "/" and merged.endswith(route)), key=len, default=None)


def _merge_slashes(path: str) -> str:
    """Return the path with one slash wherever there are several, and none at its end."""
    return "/" + "/".join(filter(None, path.split("/")))
