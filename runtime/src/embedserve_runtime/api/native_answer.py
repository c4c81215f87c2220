"""The results of `POST /v1/encode` in the form that is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson
from numpy.typing import NDArray

from embedserve_runtime.api.encoding import (
    RowWriter,
    base64_of,
    numbers_of,
    sparse_object,
    sparse_objects,
    write_matrices,
    write_rows,
    write_wholes,
)
from embedserve_runtime.api.schemas.native import EncodeBody, Encoding, NumberRanges
from embedserve_runtime.api.store_forms import literals, sparse_literal, weights_by_text
from embedserve_runtime.engines.base import FloatArray, Int32Array
from embedserve_runtime.engines.results import Output, SparseVector
from embedserve_runtime.errors import InvalidInput
from embedserve_runtime.heads.quantization import Precision, quantize, row_scales
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.ranges import RANGES_FILE, Ranges
from embedserve_runtime.service import EmbeddingService, EmbedResult

FLOATS = (Precision.FLOAT32, Precision.FLOAT16)
# Precisions that lose the length of a vector unless its scale is sent along, or ranges are known.
SCALED = (Precision.INT8, Precision.UINT8)


@dataclass(frozen=True, slots=True)
class Form:
    """texts: with the entries' texts beside sparse vectors. by_text: sparse vectors as one object too."""

    precision: Precision
    encoding: Encoding
    ranges: Ranges | None
    texts: bool
    by_text: bool

    def quantized(self, rows: FloatArray) -> NDArray[Any]:
        return quantize(rows, self.precision, self.ranges)

    @property
    def rows(self) -> RowWriter:
        """Of vectors."""
        if self.encoding == "pgvector":
            return literals(self.precision)
        return (base64_of if self.encoding == "base64" else numbers_of)(self.quantized)

    def sparse(self, width: int, texts: Callable[[Int32Array], list[str]]) -> Callable[[SparseVector], bytes]:
        """Of sparse vectors in `width` dimensions."""
        if self.encoding == "pgvector":
            return lambda vector: sparse_literal(vector, self.precision, width)
        as_base64, beside = self.encoding == "base64", texts if self.texts else None
        return lambda vector: sparse_object(vector, self.precision, beside, as_base64=as_base64)

    def weights(self, texts: Callable[[Int32Array], list[str]]) -> Callable[[SparseVector], bytes]:
        return lambda vector: weights_by_text(vector, self.precision, texts)


def form_of(body: EncodeBody, service: EmbeddingService) -> Form:
    """Raises InvalidInput for a form that does not exist."""
    ranges = _ranges(body, service)
    if body.encoding == "pgvector" and body.dtype in SCALED:
        raise InvalidInput(
            "pgvector has no type for int8 and uint8; ask for float32, float16, binary or ubinary"
        )
    if body.spans is not None:
        check_chunks(body.dtype, ranges)
    return Form(body.dtype, body.encoding, ranges, body.sparse_tokens, body.sparse_map)


def _ranges(body: EncodeBody, service: EmbeddingService) -> Ranges | None:
    given = body.ranges
    asked = Ranges(tuple(given.min), tuple(given.max)) if isinstance(given, NumberRanges) else given
    return ranges_of(service.card, asked, body.dtype, body.dimensions, body.normalize)


def ranges_of(
    card: ModelCard,
    asked: Ranges | Literal["stored"] | None,
    precision: Precision,
    dimensions: int | None,
    normalize: bool | None,
) -> Ranges | None:
    """What vectors are quantised by, None for a scale of each. stored: in the model's folder.

    dimensions, normalize: as asked for; None does as the model says. Raises InvalidInput.
    """
    if asked is None:
        return None
    if precision not in SCALED:
        raise InvalidInput("`ranges` are for int8 and uint8")
    pipeline = card.pipeline
    wanted = dimensions or pipeline.dimensions
    if asked != "stored":
        if fault := asked.fault(wanted):
            raise InvalidInput(f"`ranges` {fault}")
        return asked
    if card.ranges is None:
        raise InvalidInput(f"the model's folder has no {RANGES_FILE}; send `ranges` along")
    if wanted != pipeline.dimensions or normalize not in (None, pipeline.normalize):
        raise InvalidInput(
            "stored ranges are for vectors as the model makes them; leave out dimensions and normalize"
        )
    return card.ranges


def check_chunks(precision: Precision, ranges: Ranges | None) -> None:
    """Raises InvalidInput where vectors of spans would lose their length."""
    if precision in SCALED and ranges is None:
        raise InvalidInput("chunks are written as int8 or uint8 with `ranges` only")


async def write_results(
    form: Form, wanted: Output, service: EmbeddingService, embedded: EmbedResult
) -> list[bytes]:
    """Members of the answer, a member for each output."""
    members = []
    if Output.DENSE in wanted:
        members.append(b'"dense":' + await write_rows(embedded.dense, form.rows))
        if form.precision in SCALED and form.ranges is None:
            steps = row_scales(embedded.dense)
            members.append(b'"scales":' + orjson.dumps(steps, option=orjson.OPT_SERIALIZE_NUMPY))
    if Output.SPARSE in wanted:
        write_one = form.sparse(service.card.sparse_width, service.token_texts)
        members.append(b'"sparse":[' + await sparse_objects(embedded.sparse, write_one) + b"]")
        if form.by_text:
            write_one = form.weights(service.token_texts)
            members.append(b'"sparse_map":[' + await sparse_objects(embedded.sparse, write_one) + b"]")
    for output, name, matrices in (
        (Output.MULTI_VECTOR, b"multi_vector", embedded.multi_vectors),
        (Output.HIDDEN, b"hidden", embedded.hidden),
    ):
        if output in wanted:
            members.append(b'"%b":[%b]' % (name, await _matrices(form, matrices)))
    if embedded.chunks:
        members.append(b'"chunks":[' + await write_matrices(embedded.chunks, form.rows) + b"]")
    return members


async def _matrices(form: Form, matrices: Sequence[FloatArray]) -> bytes:
    if form.encoding == "base64":
        return await write_wholes(matrices, form.precision)
    return await write_matrices(matrices, form.rows)
