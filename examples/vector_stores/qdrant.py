"""Qdrant: dense vectors, sparse ones or multi-vectors, by what the served model gives.

    python qdrant.py http://localhost:8080

In local mode, without a server; `QdrantClient(url=...)` talks to one.
"""

from __future__ import annotations

from typing import Any

from embed import QUERY, TEXTS, Hit, encode, run
from qdrant_client import QdrantClient, models


def search(address: str) -> list[Hit]:
    documents = encode(address, TEXTS, input_type="document")
    query = encode(address, [QUERY], input_type="query")
    kind = next(name for name in ("dense", "sparse", "multi_vector") if name in documents)
    client = QdrantClient(":memory:")
    client.create_collection("texts", **collection(kind, documents[kind][0]))
    points = [
        models.PointStruct(id=number, payload={"text": text}, vector={kind: stored(kind, vector)})
        for number, (text, vector) in enumerate(zip(TEXTS, documents[kind], strict=True))
    ]
    client.upsert("texts", points)
    found = client.query_points("texts", query=stored(kind, query[kind][0]), using=kind, limit=len(TEXTS))
    return [(point.payload["text"], point.score) for point in found.points]


def collection(kind: str, vector: Any) -> dict[str, Any]:
    if kind == "sparse":
        return {"sparse_vectors_config": {kind: models.SparseVectorParams()}}
    multiple = models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM)
    size = len(vector[0]) if kind == "multi_vector" else len(vector)
    params = models.VectorParams(
        size=size,
        distance=models.Distance.DOT,
        multivector_config=multiple if kind == "multi_vector" else None,
    )
    return {"vectors_config": {kind: params}}


def stored(kind: str, vector: Any) -> Any:
    """`indices` and `values` of a sparse vector are Qdrant's own names."""
    return models.SparseVector(**vector) if kind == "sparse" else vector


if __name__ == "__main__":
    run(search)
