"""Milvus: dense or sparse vectors, by what the served model gives.

    python milvus.py http://localhost:8080

In Milvus Lite, a file; `MilvusClient(uri="http://...")` talks to a server.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from embed import QUERY, TEXTS, Hit, encode, run
from pymilvus import DataType, MilvusClient


def search(address: str) -> list[Hit]:
    documents = encode(address, TEXTS, input_type="document")
    query = encode(address, [QUERY], input_type="query")
    kind = "sparse" if "sparse" in documents else "dense"
    rows = [
        {"id": number, "text": text, "vector": stored(kind, vector)}
        for number, (text, vector) in enumerate(zip(TEXTS, documents[kind], strict=True))
    ]
    with TemporaryDirectory() as folder:
        client = MilvusClient(str(Path(folder) / "texts.db"))
        create(client, kind, len(documents[kind][0]))
        client.insert("texts", rows)
        (hits,) = client.search(
            "texts",
            data=[stored(kind, query[kind][0])],
            anns_field="vector",
            limit=len(TEXTS),
            output_fields=["text"],
            search_params={"metric_type": "IP"},
        )
        found = [(hit["entity"]["text"], hit["distance"]) for hit in hits]
        client.close()
    return found


def create(client: MilvusClient, kind: str, size: int) -> None:
    schema = client.create_schema()
    schema.add_field("id", DataType.INT64, is_primary=True)
    schema.add_field("text", DataType.VARCHAR, max_length=1024)
    index = client.prepare_index_params()
    if kind == "sparse":
        schema.add_field("vector", DataType.SPARSE_FLOAT_VECTOR)
        index.add_index("vector", index_type="SPARSE_INVERTED_INDEX", metric_type="IP")
    else:
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=size)
        index.add_index("vector", index_type="FLAT", metric_type="IP")
    client.create_collection("texts", schema=schema, index_params=index)


def stored(kind: str, vector: Any) -> Any:
    """A sparse vector is a mapping of index to value."""
    return dict(zip(vector["indices"], vector["values"], strict=True)) if kind == "sparse" else vector


if __name__ == "__main__":
    run(search)
