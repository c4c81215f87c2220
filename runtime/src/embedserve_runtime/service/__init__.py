"""One request's way: prompt -> tokens -> batches -> results -> cut, scores, normalise.

Every dialect of the API comes through here, so what a request means is decided once. Knows no HTTP.

    values   what is asked for and what comes back
    service  the way itself
"""

from __future__ import annotations

from embedserve_runtime.service.service import TOKENIZER_THREADS, EmbeddingService
from embedserve_runtime.service.values import (
    Effort,
    Embedded,
    EmbedQuery,
    Pair,
    Role,
    Scored,
    ScoreQuery,
    Timings,
)

__all__ = [
    "TOKENIZER_THREADS",
    "Effort",
    "EmbedQuery",
    "Embedded",
    "EmbeddingService",
    "Pair",
    "Role",
    "ScoreQuery",
    "Scored",
    "Timings",
]
