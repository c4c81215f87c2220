"""Writes vectors as vector stores read them: literals of pgvector, and weights by the text of their entries.

Sources: the input formats of pgvector's `vector`, `halfvec`, `sparsevec` and of PostgreSQL's `bit`; the fields
`sparse_vector` and `rank_features` of Elasticsearch and OpenSearch.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import orjson

from embedserve_runtime.api.encoding import RowWriter, convert_weights, format_numbers
from embedserve_runtime.forward.arrays import FloatArray, Int32Array
from embedserve_runtime.forward.outputs import SparseVector
from embedserve_runtime.heads.quantization import OutputDtype, quantize

BITS = (OutputDtype.BINARY, OutputDtype.UBINARY)


def make_pgvector_writer(output_dtype: OutputDtype) -> RowWriter:
    """Return a writer of `"[0.1,0.2]"` for each row, or `"0110"` for binary; pgvector has no type for int8."""
    return (
        _write_bits if output_dtype in BITS else lambda rows, _: _write_vectors(quantize(rows, output_dtype))
    )


def _write_vectors(rows: FloatArray) -> bytes:
    items = (b'"' + orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY) + b'"' for row in rows)
    return b"[" + b",".join(items) + b"]"


def _write_bits(rows: FloatArray, _: int) -> bytes:
    digits = (rows > 0).astype(np.uint8) + ord("0")
    return b"[" + b",".join(b'"' + row.tobytes() + b'"' for row in digits) + b"]"


def write_pgvector_sparse(vector: SparseVector, output_dtype: OutputDtype, width: int) -> bytes:
    """Write `"{1:0.5,7:0.2}/30522"`: indices count from 1, and the number of dimensions follows the slash."""
    written = format_numbers(convert_weights(vector, output_dtype)) if len(vector.values) else []
    entries = (b"%d:%b" % pair for pair in zip((vector.indices + 1).tolist(), written, strict=True))
    return b'"{' + b",".join(entries) + b'}/%d"' % width


def write_weights_by_text(
    vector: SparseVector, output_dtype: OutputDtype, texts: Callable[[Int32Array], list[str]]
) -> bytes:
    """Write `{"number":1.8}`. Entries without a text are left out; of those with the same text the largest stays."""
    values = convert_weights(vector, output_dtype)
    indices: dict[str, int] = {}
    for index, text in enumerate(texts(vector.indices)):
        if text and (text not in indices or values[index] > values[indices[text]]):
            indices[text] = index
    written = format_numbers(values) if len(values) else []
    items = (orjson.dumps(text) + b":" + written[index] for text, index in indices.items())
    return b"{" + b",".join(items) + b"}"
