"""OpenSearch and Elasticsearch: what is sent to an index of weights by token, and what it is searched with.

    python opensearch.py http://localhost:8080

Prints the requests and sends none. The served model must give sparse vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from embed import QUERY, TEXTS, encode, run


def search(address: str) -> Mapping[str, Any]:
    documents = encode(address, TEXTS, input_type="document", sparse_map=True)
    query = encode(address, [QUERY], input_type="query", sparse_map=True)
    (weights,) = query["sparse_map"]
    mapping = {"properties": {"text": {"type": "text"}, "tokens": {"type": "rank_features"}}}
    return {
        "PUT texts": {"mappings": mapping},
        "POST texts/_doc": [
            {"text": text, "tokens": fields(tokens)}
            for text, tokens in zip(TEXTS, documents["sparse_map"], strict=True)
        ],
        "POST texts/_search": {"query": {"neural_sparse": {"tokens": {"query_tokens": fields(weights)}}}},
    }


def fields(weights: Mapping[str, float]) -> dict[str, float]:
    """A dot in the name of a field would make an object of it."""
    named: dict[str, float] = {}
    for token, weight in weights.items():
        name = token.replace(".", "_")
        named[name] = max(weight, named.get(name, 0.0))
    return named


if __name__ == "__main__":
    run(search)
