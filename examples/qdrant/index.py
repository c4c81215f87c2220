"""A search index that never mixes vector spaces: one Qdrant collection for each space.

    python index.py fill   http://docs-5a1e0c77.search.svc DOCUMENTS.jsonl   # {"id": 1, "text": "..."} a line
    python index.py search http://docs.search.svc "What is a vector?"

`QDRANT_URL` names the server; without it the folder `qdrant` is used.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import httpx
from qdrant_client import QdrantClient
from qdrant_client.models import Distance, PointStruct, VectorParams

BATCH = 64


def embed(
    client: httpx.Client, url: str, texts: Sequence[str], space: str | None
) -> tuple[str, list[list[float]]]:
    """The vectors and their space. With `space`, another one is refused by the service (409)."""
    headers = {} if space is None else {"X-Embedserve-Vector-Space": space}
    answer = client.post(f"{url}/embed", json={"inputs": texts}, headers=headers)
    answer.raise_for_status()
    return answer.headers["X-Embedserve-Vector-Space"], answer.json()


def collection_of(space: str) -> str:
    return f"docs-{space}"


def fill(store: QdrantClient, url: str, file: Path) -> str:
    """Put all documents into the collection of the space behind `url`; again is no harm. The collection's name."""
    space = None
    with httpx.Client(timeout=60) as client, file.open(encoding="utf-8") as lines:
        documents = map(json.loads, lines)
        while batch := list(itertools.islice(documents, BATCH)):
            # The first answer says which space it is; from then on no other one is accepted.
            space, vectors = embed(client, url, [document["text"] for document in batch], space)
            if not store.collection_exists(collection_of(space)):
                size = VectorParams(size=len(vectors[0]), distance=Distance.COSINE)
                store.create_collection(collection_of(space), vectors_config=size)
            points = [
                PointStruct(id=document["id"], vector=vector, payload={"text": document["text"]})
                for document, vector in zip(batch, vectors, strict=True)
            ]
            store.upsert(collection_of(space), points)
    if space is None:
        raise SystemExit(f"{file} has no documents")
    return collection_of(space)


def search(store: QdrantClient, url: str, query: str) -> list[str]:
    """The best documents, from the collection of the space that the query's vector is in."""
    with httpx.Client(timeout=60) as client:
        space, (vector,) = embed(client, url, [query], None)
    found = store.query_points(collection_of(space), query=vector, limit=3).points
    return [f"{point.score:.3f}  {point.payload['text']}" for point in found if point.payload]


def main(command: str, url: str, what: str) -> None:
    server = os.environ.get("QDRANT_URL")
    store = QdrantClient(url=server) if server else QdrantClient(path="qdrant")
    print(fill(store, url, Path(what)) if command == "fill" else "\n".join(search(store, url, what)))
    store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
