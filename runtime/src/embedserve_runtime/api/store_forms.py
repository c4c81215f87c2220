"""Vectors as vector stores write them: literals of pgvector, and weights by the text of their entries.

Sources: the input formats of pgvector's `vector`, `halfvec`, `sparsevec` and of PostgreSQL's `bit`; the fields
`sparse_vector` and `rank_features` of Elasticsearch and OpenSearch.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import orjson

from embedserve_runtime.api.encoding import RowWriter, numbers, weights_in
from embedserve_runtime.engines.base import FloatArray, Int32Array
from embedserve_runtime.engines.results import SparseVector
from embedserve_runtime.heads.quantization import Precision, quantize

BITS = (Precision.BINARY, Precision.UBINARY)


def literals(precision: Precision) -> RowWriter:
    """`"[0.1,0.2]"` for each row; for binary `"0110"`. int8 has no type there."""
    return _bits if precision in BITS else lambda rows, _: _vectors(quantize(rows, precision))


def _vectors(rows: FloatArray) -> bytes:
    items = (b'"' + orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY) + b'"' for row in rows)
    return b"[" + b",".join(items) + b"]"


def _bits(rows: FloatArray, _: int) -> bytes:
    digits = (rows > 0).astype(np.uint8) + ord("0")
    return b"[" + b",".join(b'"' + row.tobytes() + b'"' for row in digits) + b"]"


def sparse_literal(vector: SparseVector, precision: Precision, width: int) -> bytes:
    """`"{1:0.5,7:0.2}/30522"`: indices count from 1, behind the slash stands the number of dimensions."""
    written = numbers(weights_in(vector, precision)) if len(vector.values) else []
    entries = (b"%d:%b" % pair for pair in zip((vector.indices + 1).tolist(), written, strict=True))
    return b'"{' + b",".join(entries) + b'}/%d"' % width


def weights_by_text(
    vector: SparseVector, precision: Precision, texts: Callable[[Int32Array], list[str]]
) -> bytes:
    """`{"number":1.8}`. Entries without a text of their own, which no text has, are left out; of those that share one
    the largest stays."""
    values = weights_in(vector, precision)
    places: dict[str, int] = {}
    for place, text in enumerate(texts(vector.indices)):
        if text and (text not in places or values[place] > values[places[text]]):
            places[text] = place
    written = numbers(values) if len(values) else []
    items = (orjson.dumps(text) + b":" + written[place] for text, place in places.items())
    return b"{" + b",".join(items) + b"}"
