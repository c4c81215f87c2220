"""Reads what a body of `/v1/embeddings` asks for, by the field names of the APIs whose clients call that path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from embedserve_runtime.api.encoding import RowWriter, get_base64_writer, get_number_writer
from embedserve_runtime.api.inputs import check_dimensions, merge_aliases
from embedserve_runtime.api.schemas.base import EmbeddingType
from embedserve_runtime.api.schemas.openai import EmbeddingRequest
from embedserve_runtime.errors import InvalidInput
from embedserve_runtime.heads.quantization import OutputDtype
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.tokenizing import Side

ChunkedOverflow = Literal["chunk", "chunk-mean"]

OUTPUT_DTYPES: Mapping[EmbeddingType, OutputDtype] = {
    "float": OutputDtype.FLOAT32,
    "base64": OutputDtype.FLOAT32,
    "int8": OutputDtype.INT8,
    "uint8": OutputDtype.UINT8,
    "binary": OutputDtype.BINARY,
    "ubinary": OutputDtype.UBINARY,
}
# Most requests have no others, and are read without a look at the rest.
_COMMON_FIELDS = frozenset(("input", "model", "encoding_format", "dimensions", "user"))
TRUNCATES: Mapping[str, bool] = {"truncate": True, "error": False}
"""Says for a value of `overflow` whether long inputs are truncated."""
CHUNKED: Mapping[str, ChunkedOverflow] = {"chunk": "chunk", "chunk-mean": "chunk-mean"}
_SIDES: Mapping[str, Side] = {"START": "left", "END": "right"}


class EmbeddingOptions(NamedTuple):
    """The options of a request to `/v1/embeddings`.

    dimensions, truncate, side, max_length, normalize: the same as in `EmbedQuery`. overflow: how long inputs are
    chunked, if they are.
    """

    dimensions: int | None
    as_base64: bool
    output_dtype: OutputDtype = OutputDtype.FLOAT32
    truncate: bool | None = None
    side: Side | None = None
    max_length: int | None = None
    normalize: bool = True
    overflow: ChunkedOverflow | None = None
    late_chunking: bool = False

    @property
    def row_writer(self) -> RowWriter:
        """The writer of rows as plain arrays."""
        return (get_base64_writer if self.as_base64 else get_number_writer)(self.output_dtype)


def read_embedding_options(card: ModelCard, body: EmbeddingRequest) -> EmbeddingOptions:
    """Read the options of a body. Raises InvalidInput where two of its fields contradict each other."""
    if body.model_fields_set <= _COMMON_FIELDS:
        return EmbeddingOptions(body.dimensions, body.encoding_format == "base64")
    kind: EmbeddingType | None = merge_aliases(
        embedding_type=body.embedding_type[0]
        if isinstance(body.embedding_type, list)
        else body.embedding_type,
        embedding_types=body.embedding_types[0] if body.embedding_types else None,
        output_dtype=body.output_dtype,
    )
    if kind == "base64" and body.encoding_format == "float":
        raise InvalidInput(
            f"`encoding_format` says float and `{_find_kind_field(body)}` base64; leave one of them out"
        )
    check_dimensions(card, output_dimension=body.output_dimension)
    max_length = body.truncate_prompt_tokens
    truncate = merge_aliases(
        truncate=body.truncate != "NONE" if isinstance(body.truncate, str) else body.truncate,
        truncation=body.truncation,
        truncate_prompt_tokens=None if max_length is None else True,
        overflow=TRUNCATES.get(body.overflow or ""),
    )
    normalize = merge_aliases(normalized=body.normalized, normalize=body.normalize)
    return EmbeddingOptions(
        dimensions=merge_aliases(dimensions=body.dimensions, output_dimension=body.output_dimension),
        as_base64="base64" in (kind, body.encoding_format),
        output_dtype=OUTPUT_DTYPES[kind or "float"],
        truncate=truncate,
        side=_SIDES.get(body.truncate) if isinstance(body.truncate, str) else None,
        max_length=None if max_length == -1 else max_length,
        normalize=normalize is not False,
        overflow=read_chunked_overflow(
            body.overflow,
            truncate=body.truncate,
            truncation=body.truncation,
            truncate_prompt_tokens=body.truncate_prompt_tokens,
            late_chunking=body.late_chunking or None,
        ),
        late_chunking=bool(body.late_chunking),
    )


def _find_kind_field(body: EmbeddingRequest) -> str:
    """Return the name of the field that says how the vectors' numbers are written."""
    fields = ("embedding_type", "embedding_types", "output_dtype")
    return next(field for field in fields if getattr(body, field) is not None)


def read_chunked_overflow(overflow: str | None, **options: object) -> ChunkedOverflow | None:
    """Return how long inputs are chunked; None where they are not.

    options: the values of other fields that say what becomes of long inputs, None where the request has none. Raises
    InvalidInput where the request has one.
    """
    if overflow is None or overflow not in CHUNKED:
        return None
    option = next((name for name, value in options.items() if value is not None), None)
    if option is not None:
        raise InvalidInput(
            f"`overflow`: {overflow} cannot be combined with `{option}`; leave one of them out"
        )
    return CHUNKED[overflow]
