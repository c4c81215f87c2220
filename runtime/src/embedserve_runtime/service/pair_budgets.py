"""Cuts the texts of pairs to budgets of tokens."""

from __future__ import annotations

from collections.abc import Sequence

from embedserve_runtime.service.types import Pair
from embedserve_runtime.tokenizing import TextTokenizer

# Tokens of a document that stay where a request with token budgets has a query that leaves no room for them.
MIN_DOCUMENT_TOKENS = 64


def shorten_pairs(
    tokenizer: TextTokenizer, pairs: Sequence[Pair], query_tokens: int | None, document_tokens: int | None
) -> list[Pair]:
    """Cut the texts of pairs to at most these numbers of tokens; None leaves them. Equal queries are cut once."""
    queries = [*dict.fromkeys(pair.first for pair in pairs)]
    shortened = queries if query_tokens is None else tokenizer.shorten(queries, query_tokens)
    shortened_query_of = dict(zip(queries, shortened, strict=True))
    documents = [pair.second for pair in pairs]
    if document_tokens is not None:
        documents = tokenizer.shorten(documents, document_tokens)
    return [
        Pair(shortened_query_of[pair.first], document)
        for pair, document in zip(pairs, documents, strict=True)
    ]
