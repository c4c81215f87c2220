"""Writes the results of `POST /v1/encode` in the requested format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson
from numpy.typing import NDArray

from embedserve_runtime.api.encoding import (
    RowWriter,
    make_base64_writer,
    make_number_writer,
    write_base64_matrices,
    write_matrices,
    write_rows,
    write_sparse_vector,
    write_sparse_vectors,
)
from embedserve_runtime.api.schemas.native import EncodeRequest, Encoding, NumberRanges
from embedserve_runtime.api.vector_store_formats import (
    make_pgvector_writer,
    write_pgvector_sparse,
    write_weights_by_text,
)
from embedserve_runtime.errors import InvalidInput
from embedserve_runtime.forward.arrays import FloatArray, Int32Array
from embedserve_runtime.forward.outputs import OutputKind, SparseVector
from embedserve_runtime.heads.quantization import OutputDtype, compute_row_scales, quantize
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.ranges import RANGES_FILE, Ranges
from embedserve_runtime.service import EmbedResult, InferenceService

FLOAT_DTYPES = (OutputDtype.FLOAT32, OutputDtype.FLOAT16)
# In these precisions the length of a vector is lost, unless its scale is sent along or ranges are known.
SCALED_DTYPES = (OutputDtype.INT8, OutputDtype.UINT8)


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """The format of an answer's vectors.

    texts: whether sparse vectors have the texts of their entries. by_text: whether they are also written as an object
    of weights by text.
    """

    output_dtype: OutputDtype
    encoding: Encoding
    ranges: Ranges | None
    texts: bool
    by_text: bool

    def quantize(self, rows: FloatArray) -> NDArray[Any]:
        return quantize(rows, self.output_dtype, self.ranges)

    @property
    def row_writer(self) -> RowWriter:
        """The writer of dense vectors."""
        if self.encoding == "pgvector":
            return make_pgvector_writer(self.output_dtype)
        return (make_base64_writer if self.encoding == "base64" else make_number_writer)(self.quantize)

    def sparse_writer(
        self, width: int, texts: Callable[[Int32Array], list[str]]
    ) -> Callable[[SparseVector], bytes]:
        """Return the writer of sparse vectors with `width` dimensions."""
        if self.encoding == "pgvector":
            return lambda vector: write_pgvector_sparse(vector, self.output_dtype, width)
        as_base64, token_texts = self.encoding == "base64", texts if self.texts else None
        return lambda vector: write_sparse_vector(vector, self.output_dtype, token_texts, as_base64=as_base64)

    def weights_writer(self, texts: Callable[[Int32Array], list[str]]) -> Callable[[SparseVector], bytes]:
        return lambda vector: write_weights_by_text(vector, self.output_dtype, texts)


def resolve_format(body: EncodeRequest, service: InferenceService) -> OutputFormat:
    """Read the format that a body asks for. Raises InvalidInput for a combination that does not exist."""
    output_dtype = body.dtype or OutputDtype.FLOAT32
    ranges = _read_ranges(body, output_dtype, service)
    if body.encoding == "pgvector" and output_dtype in SCALED_DTYPES:
        raise InvalidInput(
            "pgvector has no type for int8 and uint8; ask for float32, float16, binary or ubinary"
        )
    if body.spans is not None:
        check_chunks(output_dtype, ranges)
    return OutputFormat(
        output_dtype,
        body.encoding or "json",
        ranges,
        texts=bool(body.sparse_tokens),
        by_text=bool(body.sparse_map),
    )


def _read_ranges(body: EncodeRequest, output_dtype: OutputDtype, service: InferenceService) -> Ranges | None:
    ranges = body.ranges
    requested = Ranges(tuple(ranges.min), tuple(ranges.max)) if isinstance(ranges, NumberRanges) else ranges
    return resolve_ranges(service.card, requested, output_dtype, body.dimensions, body.normalize)


def resolve_ranges(
    card: ModelCard,
    requested: Ranges | Literal["stored"] | None,
    output_dtype: OutputDtype,
    dimensions: int | None,
    normalize: bool | None,
) -> Ranges | None:
    """Return the ranges that vectors are quantized by; None for a scale for each vector. stored: those in the model's
    folder.

    dimensions, normalize: as asked for; None does as the model says. Raises InvalidInput.
    """
    if requested is None:
        return None
    if output_dtype not in SCALED_DTYPES:
        raise InvalidInput("`ranges` are for int8 and uint8")
    pipeline = card.pipeline
    size = dimensions or pipeline.dimensions
    if requested != "stored":
        if fault := requested.find_fault(size):
            raise InvalidInput(f"`ranges` {fault}")
        return requested
    if card.ranges is None:
        raise InvalidInput(f"the model's folder has no {RANGES_FILE}; send `ranges` along")
    if size != pipeline.dimensions or normalize not in (None, pipeline.normalize):
        raise InvalidInput(
            "stored ranges are for vectors as the model makes them; leave out dimensions and normalize"
        )
    return card.ranges


def check_chunks(output_dtype: OutputDtype, ranges: Ranges | None) -> None:
    """Raise InvalidInput where vectors of spans would lose their length."""
    if output_dtype in SCALED_DTYPES and ranges is None:
        raise InvalidInput("chunks are written as int8 or uint8 with `ranges` only")


async def write_results(
    output_format: OutputFormat, outputs: OutputKind, service: InferenceService, embedded: EmbedResult
) -> list[bytes]:
    """Write the members of the answer, one for each output."""
    members = []
    if OutputKind.DENSE in outputs:
        members.append(b'"dense":' + await write_rows(embedded.dense, output_format.row_writer))
        if output_format.output_dtype in SCALED_DTYPES and output_format.ranges is None:
            steps = compute_row_scales(embedded.dense)
            members.append(b'"scales":' + orjson.dumps(steps, option=orjson.OPT_SERIALIZE_NUMPY))
    if OutputKind.SPARSE in outputs:
        write_one = output_format.sparse_writer(service.card.sparse_width, service.token_texts)
        members.append(b'"sparse":[' + await write_sparse_vectors(embedded.sparse, write_one) + b"]")
        if output_format.by_text:
            write_one = output_format.weights_writer(service.token_texts)
            members.append(b'"sparse_map":[' + await write_sparse_vectors(embedded.sparse, write_one) + b"]")
    for output, name, matrices in (
        (OutputKind.MULTI_VECTOR, b"multi_vector", embedded.multi_vectors),
        (OutputKind.HIDDEN, b"hidden", embedded.hidden),
    ):
        if output in outputs:
            members.append(b'"%b":[%b]' % (name, await _write_matrices(output_format, matrices)))
    if embedded.chunks:
        members.append(b'"chunks":[' + await write_matrices(embedded.chunks, output_format.row_writer) + b"]")
    return members


async def _write_matrices(output_format: OutputFormat, matrices: Sequence[FloatArray]) -> bytes:
    if output_format.encoding == "base64":
        return await write_base64_matrices(matrices, output_format.output_dtype)
    return await write_matrices(matrices, output_format.row_writer)
