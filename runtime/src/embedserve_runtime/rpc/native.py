"""Serves `embedserve.v1`: several outputs of one forward pass, their numbers as little-endian bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from types import MappingProxyType
from typing import Any, Literal, cast

from embedserve_runtime.api.input_types import (
    INPUT_TYPES,
    InputTypeName,
    TypedFields,
    read_input_prompt,
    select_pair_service,
)
from embedserve_runtime.api.inputs import record_inputs
from embedserve_runtime.api.native_response import (
    FLOAT_DTYPES,
    SCALED_DTYPES,
    check_chunks,
    resolve_ranges,
)
from embedserve_runtime.errors import InvalidInput, WrongModelKind
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.outputs import OutputKind, SparseVector
from embedserve_runtime.heads.quantization import OutputDtype, compute_row_scales, quantize
from embedserve_runtime.model.ranges import Ranges
from embedserve_runtime.rpc.generated import embedserve_pb2 as pb
from embedserve_runtime.rpc.handlers import MessageContext, MethodHandlers, Methods, Response
from embedserve_runtime.rpc.protobuf_fields import optional_field
from embedserve_runtime.service import (
    EmbedQuery,
    EmbedResult,
    Measure,
    RelevanceQuery,
    RequestUsage,
    Role,
    compute_relevance,
)
from embedserve_runtime.tokenizing import Input, Side

# Messages of a stream that are processed concurrently; each may have as many inputs as a request.
STREAM_WINDOW = 8
# Larger results are written in a thread.
MAX_INLINE_BYTES = 2**19

_OUTPUTS = {
    pb.OUTPUT_DENSE: OutputKind.DENSE,
    pb.OUTPUT_SPARSE: OutputKind.SPARSE,
    pb.OUTPUT_MULTI_VECTOR: OutputKind.MULTI_VECTOR,
    pb.OUTPUT_HIDDEN: OutputKind.HIDDEN,
}
_PRECISIONS = {
    pb.PRECISION_UNSPECIFIED: OutputDtype.FLOAT32,
    pb.PRECISION_FLOAT32: OutputDtype.FLOAT32,
    pb.PRECISION_FLOAT16: OutputDtype.FLOAT16,
    pb.PRECISION_INT8: OutputDtype.INT8,
    pb.PRECISION_UINT8: OutputDtype.UINT8,
    pb.PRECISION_BINARY: OutputDtype.BINARY,
    pb.PRECISION_UBINARY: OutputDtype.UBINARY,
}
_ROLES: dict[pb.InputType, Role | None] = {
    pb.INPUT_TYPE_UNSPECIFIED: None,
    pb.INPUT_TYPE_QUERY: "query",
    pb.INPUT_TYPE_DOCUMENT: "document",
}


@dataclass(frozen=True, slots=True)
class MatrixFormat:
    """The format in which matrices are written."""

    output_dtype: OutputDtype
    ranges: Ranges | None

    def write(self, matrix: FloatArray) -> pb.Matrix:
        rows = quantize(matrix, self.output_dtype, self.ranges)
        return pb.Matrix(rows=rows.shape[0], columns=rows.shape[1], values=rows.tobytes())


async def encode(context: MessageContext, request: pb.EncodeRequest) -> Response[pb.EncodeResponse]:
    output_dtype = _look_up(_PRECISIONS, request.precision, "precision")
    fields = _read_types(request)
    context = context.for_task(fields)
    query = _build_query(context, request, fields)
    matrix_format = _read_format(context, request, query, output_dtype)
    embedded = await context.service.embed(query)
    message = pb.EncodeResponse(
        model=context.model_name,
        vector_space=context.service.card.vector_space,
        precision=request.precision or pb.PRECISION_FLOAT32,
        token_counts=embedded.usage.lengths,
        effort=_build_effort(embedded.usage),
    )
    if _count_result_bytes(embedded) <= MAX_INLINE_BYTES:
        _write_outputs(message, embedded, query.outputs, matrix_format)
    else:
        await asyncio.to_thread(_write_outputs, message, embedded, query.outputs, matrix_format)
    return Response(message, embedded.usage, context.service)


async def score(context: MessageContext, request: pb.ScoreRequest) -> Response[pb.ScoreResponse]:
    record_inputs(context.request, len(request.documents), is_batch=True)
    weights = {
        measure: weight
        for measure in Measure
        if (weight := optional_field(request.weights, measure.value)) is not None
    }
    service, prompt_names = select_pair_service(
        context.service,
        _read_task(request),
        (optional_field(request, "query_prompt_name"), optional_field(request, "document_prompt_name")),
    )
    query = RelevanceQuery(
        request.query,
        list(request.documents),
        weights=weights,
        divide=not request.sum_only,
        query_prompt_name=prompt_names[0],
        document_prompt_name=prompt_names[1],
        truncate=optional_field(request, "truncate"),
        side=_read_truncation_side(request.truncation_side),
        vector_space=_read_space(context, request),
        timeout=context.options.timeout,
    )
    relevance = await compute_relevance(service, query)
    message = pb.ScoreResponse(
        model=context.model_name,
        vector_space=service.card.vector_space,
        scores=relevance.scores.tolist(),
        effort=_build_effort(relevance.usage),
        **{measure.value: scores.tolist() for measure, scores in relevance.measures.items()},
    )
    return Response(message, relevance.usage, service)


def _read_types(request: pb.EncodeRequest) -> TypedFields:
    """Read the fields that say what the inputs are. Raises InvalidInput for unknown words and numbers."""
    return TypedFields(
        _look_up(_ROLES, request.input_type, "input_type"),
        _read_task(request),
        optional_field(request, "prompt_name"),
        optional_field(request, "prompt"),
    )


def _read_task(request: pb.EncodeRequest | pb.ScoreRequest) -> InputTypeName | None:
    task = optional_field(request, "task")
    if task is not None and task not in INPUT_TYPES:
        raise InvalidInput(f"`task`: {task!r} is none of {', '.join(INPUT_TYPES)}")
    return cast(InputTypeName | None, task)


def _build_query(context: MessageContext, request: pb.EncodeRequest, fields: TypedFields) -> EmbedQuery:
    prompt = read_input_prompt(context.service.card, fields)
    inputs = _read_inputs(request)
    record_inputs(context.request, len(inputs), is_batch=True)
    return EmbedQuery(
        inputs=inputs,
        truncate=optional_field(request, "truncate"),
        side=_read_truncation_side(request.truncation_side),
        prompt_name=prompt.name,
        prompt=prompt.text,
        normalize=optional_field(request, "normalize"),
        dimensions=optional_field(request, "dimensions"),
        vector_space=_read_space(context, request),
        timeout=context.options.timeout,
        outputs=_read_outputs(context, request),
        top_k=_read_top_k(request),
        threshold=_read_threshold(request),
        role=prompt.role,
        spans=[[(span.start, span.end) for span in spans.spans] for spans in request.spans] or None,
        pool_factor=_read_pool_factor(request),
    )


def _read_format(
    context: MessageContext, request: pb.EncodeRequest, query: EmbedQuery, output_dtype: OutputDtype
) -> MatrixFormat:
    """Read the format that a request asks for. Raises InvalidInput for a combination that does not exist."""
    if query.outputs & (OutputKind.HIDDEN | OutputKind.MULTI_VECTOR) and output_dtype not in FLOAT_DTYPES:
        raise InvalidInput("hidden states and multi-vectors are written as float32 or float16")
    requested: Ranges | Literal["stored"] | None = None
    if request.HasField("ranges"):
        requested = Ranges(tuple(request.ranges.min), tuple(request.ranges.max))
    elif request.stored_ranges:
        requested = "stored"
    ranges = resolve_ranges(context.service.card, requested, output_dtype, query.dimensions, query.normalize)
    if query.spans is not None:
        check_chunks(output_dtype, ranges)
    return MatrixFormat(output_dtype, ranges)


def _read_inputs(request: pb.EncodeRequest) -> list[Input]:
    if request.texts and request.token_ids:
        raise InvalidInput("give either `texts` or `token_ids`")
    return list(request.texts) or [list(ids.ids) for ids in request.token_ids]


def _read_outputs(context: MessageContext, request: pb.EncodeRequest) -> OutputKind:
    outputs = OutputKind(0)
    for output in request.outputs:
        outputs |= _look_up(_OUTPUTS, output, "outputs")
    # Spans are a result too.
    if not request.spans:
        outputs = outputs or context.service.card.main_output
    if outputs is OutputKind.LOGITS:
        raise WrongModelKind(
            "model gives scores and nothing to encode; use Score, tei.v1.Rerank or tei.v1.Predict"
        )
    return outputs


def _read_top_k(request: pb.EncodeRequest) -> int | None:
    top_k: int | None = optional_field(request, "top_k")
    if top_k == 0:
        raise InvalidInput("`top_k` must be 1 or more")
    return top_k


def _read_pool_factor(request: pb.EncodeRequest) -> float | None:
    factor: float | None = optional_field(request, "pool_factor")
    if factor is not None and not 1 <= factor < inf:
        raise InvalidInput("`pool_factor` must be a number from 1 on")
    return factor


def _read_threshold(request: pb.EncodeRequest) -> float:
    if not request.threshold >= 0:
        raise InvalidInput("`threshold` must be 0 or more")
    return request.threshold


def _read_space(context: MessageContext, request: pb.EncodeRequest | pb.ScoreRequest) -> str | None:
    """Return the vector space of the field, else that of the metadata that all calls may have."""
    space: str | None = optional_field(request, "vector_space")
    return context.options.vector_space if space is None else space


def _look_up(table: Mapping[Any, Any], value: int, field: str) -> Any:
    """Return the table's entry. Raises InvalidInput for numbers that the enum does not have, or that are not used
    here."""
    if value not in table:
        raise InvalidInput(f"`{field}`: {value} is not known here; one of {sorted(table)}")
    return table[value]


def _read_truncation_side(side: pb.Side) -> Side:
    return "left" if side == pb.SIDE_LEFT else "right"


def _build_effort(usage: RequestUsage) -> pb.Effort:
    timings = usage.timings
    return pb.Effort(
        total_seconds=timings.total,
        tokenize_seconds=timings.tokenize,
        queue_seconds=timings.queue,
        engine_seconds=timings.engine,
    )


def _count_result_bytes(embedded: EmbedResult) -> int:
    ragged = (embedded.sparse, embedded.multi_vectors, embedded.hidden, embedded.chunks)
    return embedded.dense.nbytes + sum(array.nbytes for member in ragged for array in member)


def _write_outputs(
    message: pb.EncodeResponse, embedded: EmbedResult, outputs: OutputKind, matrix_format: MatrixFormat
) -> None:
    if OutputKind.DENSE in outputs:
        message.dense.CopyFrom(matrix_format.write(embedded.dense))
        if matrix_format.output_dtype in SCALED_DTYPES and matrix_format.ranges is None:
            message.scales = compute_row_scales(embedded.dense).astype("<f4").tobytes()
    message.sparse.extend(_write_sparse(vector, matrix_format.output_dtype) for vector in embedded.sparse)
    message.multi_vector.extend(map(matrix_format.write, embedded.multi_vectors))
    message.hidden.extend(map(matrix_format.write, embedded.hidden))
    message.chunks.extend(map(matrix_format.write, embedded.chunks))


def _write_sparse(vector: SparseVector, output_dtype: OutputDtype) -> pb.SparseVector:
    """Write a sparse vector; weights are float32 unless float16 was asked for."""
    values = quantize(
        vector.values[None], output_dtype if output_dtype in FLOAT_DTYPES else OutputDtype.FLOAT32
    )
    return pb.SparseVector(indices=vector.indices.astype("<u4").tobytes(), values=values.tobytes())


def _build_methods(handlers: MethodHandlers) -> Methods:
    return {
        "Encode": handlers.unary(pb.EncodeRequest, encode),
        "EncodeStream": handlers.bidirectional(pb.EncodeRequest, encode, STREAM_WINDOW),
        "Score": handlers.unary(pb.ScoreRequest, score),
    }


SERVICES: Mapping[str, Callable[[MethodHandlers], Methods]] = MappingProxyType(
    {"embedserve.v1.Embeddings": _build_methods}
)
