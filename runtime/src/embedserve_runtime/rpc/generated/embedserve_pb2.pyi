from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Output(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTPUT_UNSPECIFIED: _ClassVar[Output]
    OUTPUT_DENSE: _ClassVar[Output]
    OUTPUT_SPARSE: _ClassVar[Output]
    OUTPUT_MULTI_VECTOR: _ClassVar[Output]
    OUTPUT_HIDDEN: _ClassVar[Output]

class Precision(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRECISION_UNSPECIFIED: _ClassVar[Precision]
    PRECISION_FLOAT32: _ClassVar[Precision]
    PRECISION_FLOAT16: _ClassVar[Precision]
    PRECISION_INT8: _ClassVar[Precision]
    PRECISION_UINT8: _ClassVar[Precision]
    PRECISION_BINARY: _ClassVar[Precision]
    PRECISION_UBINARY: _ClassVar[Precision]

class Side(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SIDE_RIGHT: _ClassVar[Side]
    SIDE_LEFT: _ClassVar[Side]

class InputType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    INPUT_TYPE_UNSPECIFIED: _ClassVar[InputType]
    INPUT_TYPE_QUERY: _ClassVar[InputType]
    INPUT_TYPE_DOCUMENT: _ClassVar[InputType]
OUTPUT_UNSPECIFIED: Output
OUTPUT_DENSE: Output
OUTPUT_SPARSE: Output
OUTPUT_MULTI_VECTOR: Output
OUTPUT_HIDDEN: Output
PRECISION_UNSPECIFIED: Precision
PRECISION_FLOAT32: Precision
PRECISION_FLOAT16: Precision
PRECISION_INT8: Precision
PRECISION_UINT8: Precision
PRECISION_BINARY: Precision
PRECISION_UBINARY: Precision
SIDE_RIGHT: Side
SIDE_LEFT: Side
INPUT_TYPE_UNSPECIFIED: InputType
INPUT_TYPE_QUERY: InputType
INPUT_TYPE_DOCUMENT: InputType

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Ranges(_message.Message):
    __slots__ = ("min", "max")
    MIN_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    min: _containers.RepeatedScalarFieldContainer[float]
    max: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, min: _Optional[_Iterable[float]] = ..., max: _Optional[_Iterable[float]] = ...) -> None: ...

class Span(_message.Message):
    __slots__ = ("start", "end")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class Spans(_message.Message):
    __slots__ = ("spans",)
    SPANS_FIELD_NUMBER: _ClassVar[int]
    spans: _containers.RepeatedCompositeFieldContainer[Span]
    def __init__(self, spans: _Optional[_Iterable[_Union[Span, _Mapping]]] = ...) -> None: ...

class EncodeRequest(_message.Message):
    __slots__ = ("texts", "token_ids", "outputs", "precision", "input_type", "prompt_name", "prompt", "truncate", "truncation_side", "normalize", "dimensions", "top_k", "threshold", "vector_space", "ranges", "stored_ranges", "spans", "pool_factor", "task")
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    INPUT_TYPE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_NAME_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    TRUNCATION_SIDE_FIELD_NUMBER: _ClassVar[int]
    NORMALIZE_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    VECTOR_SPACE_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    STORED_RANGES_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    POOL_FACTOR_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    token_ids: _containers.RepeatedCompositeFieldContainer[TokenIds]
    outputs: _containers.RepeatedScalarFieldContainer[Output]
    precision: Precision
    input_type: InputType
    prompt_name: str
    prompt: str
    truncate: bool
    truncation_side: Side
    normalize: bool
    dimensions: int
    top_k: int
    threshold: float
    vector_space: str
    ranges: Ranges
    stored_ranges: bool
    spans: _containers.RepeatedCompositeFieldContainer[Spans]
    pool_factor: float
    task: str
    def __init__(self, texts: _Optional[_Iterable[str]] = ..., token_ids: _Optional[_Iterable[_Union[TokenIds, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[Output, str]]] = ..., precision: _Optional[_Union[Precision, str]] = ..., input_type: _Optional[_Union[InputType, str]] = ..., prompt_name: _Optional[str] = ..., prompt: _Optional[str] = ..., truncate: _Optional[bool] = ..., truncation_side: _Optional[_Union[Side, str]] = ..., normalize: _Optional[bool] = ..., dimensions: _Optional[int] = ..., top_k: _Optional[int] = ..., threshold: _Optional[float] = ..., vector_space: _Optional[str] = ..., ranges: _Optional[_Union[Ranges, _Mapping]] = ..., stored_ranges: _Optional[bool] = ..., spans: _Optional[_Iterable[_Union[Spans, _Mapping]]] = ..., pool_factor: _Optional[float] = ..., task: _Optional[str] = ...) -> None: ...

class Matrix(_message.Message):
    __slots__ = ("rows", "columns", "values")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    rows: int
    columns: int
    values: bytes
    def __init__(self, rows: _Optional[int] = ..., columns: _Optional[int] = ..., values: _Optional[bytes] = ...) -> None: ...

class SparseVector(_message.Message):
    __slots__ = ("indices", "values")
    INDICES_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    indices: bytes
    values: bytes
    def __init__(self, indices: _Optional[bytes] = ..., values: _Optional[bytes] = ...) -> None: ...

class EncodeResponse(_message.Message):
    __slots__ = ("model", "vector_space", "precision", "dense", "scales", "sparse", "multi_vector", "hidden", "token_counts", "effort", "chunks")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VECTOR_SPACE_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    DENSE_FIELD_NUMBER: _ClassVar[int]
    SCALES_FIELD_NUMBER: _ClassVar[int]
    SPARSE_FIELD_NUMBER: _ClassVar[int]
    MULTI_VECTOR_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNTS_FIELD_NUMBER: _ClassVar[int]
    EFFORT_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    model: str
    vector_space: str
    precision: Precision
    dense: Matrix
    scales: bytes
    sparse: _containers.RepeatedCompositeFieldContainer[SparseVector]
    multi_vector: _containers.RepeatedCompositeFieldContainer[Matrix]
    hidden: _containers.RepeatedCompositeFieldContainer[Matrix]
    token_counts: _containers.RepeatedScalarFieldContainer[int]
    effort: Effort
    chunks: _containers.RepeatedCompositeFieldContainer[Matrix]
    def __init__(self, model: _Optional[str] = ..., vector_space: _Optional[str] = ..., precision: _Optional[_Union[Precision, str]] = ..., dense: _Optional[_Union[Matrix, _Mapping]] = ..., scales: _Optional[bytes] = ..., sparse: _Optional[_Iterable[_Union[SparseVector, _Mapping]]] = ..., multi_vector: _Optional[_Iterable[_Union[Matrix, _Mapping]]] = ..., hidden: _Optional[_Iterable[_Union[Matrix, _Mapping]]] = ..., token_counts: _Optional[_Iterable[int]] = ..., effort: _Optional[_Union[Effort, _Mapping]] = ..., chunks: _Optional[_Iterable[_Union[Matrix, _Mapping]]] = ...) -> None: ...

class Effort(_message.Message):
    __slots__ = ("total_seconds", "tokenize_seconds", "queue_seconds", "engine_seconds")
    TOTAL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TOKENIZE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    total_seconds: float
    tokenize_seconds: float
    queue_seconds: float
    engine_seconds: float
    def __init__(self, total_seconds: _Optional[float] = ..., tokenize_seconds: _Optional[float] = ..., queue_seconds: _Optional[float] = ..., engine_seconds: _Optional[float] = ...) -> None: ...

class ScoreWeights(_message.Message):
    __slots__ = ("dense", "sparse", "multi_vector", "cross_encoder")
    DENSE_FIELD_NUMBER: _ClassVar[int]
    SPARSE_FIELD_NUMBER: _ClassVar[int]
    MULTI_VECTOR_FIELD_NUMBER: _ClassVar[int]
    CROSS_ENCODER_FIELD_NUMBER: _ClassVar[int]
    dense: float
    sparse: float
    multi_vector: float
    cross_encoder: float
    def __init__(self, dense: _Optional[float] = ..., sparse: _Optional[float] = ..., multi_vector: _Optional[float] = ..., cross_encoder: _Optional[float] = ...) -> None: ...

class ScoreRequest(_message.Message):
    __slots__ = ("query", "documents", "weights", "sum_only", "query_prompt_name", "document_prompt_name", "truncate", "truncation_side", "vector_space", "task")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    SUM_ONLY_FIELD_NUMBER: _ClassVar[int]
    QUERY_PROMPT_NAME_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_PROMPT_NAME_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    TRUNCATION_SIDE_FIELD_NUMBER: _ClassVar[int]
    VECTOR_SPACE_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    query: str
    documents: _containers.RepeatedScalarFieldContainer[str]
    weights: ScoreWeights
    sum_only: bool
    query_prompt_name: str
    document_prompt_name: str
    truncate: bool
    truncation_side: Side
    vector_space: str
    task: str
    def __init__(self, query: _Optional[str] = ..., documents: _Optional[_Iterable[str]] = ..., weights: _Optional[_Union[ScoreWeights, _Mapping]] = ..., sum_only: _Optional[bool] = ..., query_prompt_name: _Optional[str] = ..., document_prompt_name: _Optional[str] = ..., truncate: _Optional[bool] = ..., truncation_side: _Optional[_Union[Side, str]] = ..., vector_space: _Optional[str] = ..., task: _Optional[str] = ...) -> None: ...

class ScoreResponse(_message.Message):
    __slots__ = ("model", "vector_space", "scores", "dense", "sparse", "multi_vector", "cross_encoder", "effort")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VECTOR_SPACE_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    DENSE_FIELD_NUMBER: _ClassVar[int]
    SPARSE_FIELD_NUMBER: _ClassVar[int]
    MULTI_VECTOR_FIELD_NUMBER: _ClassVar[int]
    CROSS_ENCODER_FIELD_NUMBER: _ClassVar[int]
    EFFORT_FIELD_NUMBER: _ClassVar[int]
    model: str
    vector_space: str
    scores: _containers.RepeatedScalarFieldContainer[float]
    dense: _containers.RepeatedScalarFieldContainer[float]
    sparse: _containers.RepeatedScalarFieldContainer[float]
    multi_vector: _containers.RepeatedScalarFieldContainer[float]
    cross_encoder: _containers.RepeatedScalarFieldContainer[float]
    effort: Effort
    def __init__(self, model: _Optional[str] = ..., vector_space: _Optional[str] = ..., scores: _Optional[_Iterable[float]] = ..., dense: _Optional[_Iterable[float]] = ..., sparse: _Optional[_Iterable[float]] = ..., multi_vector: _Optional[_Iterable[float]] = ..., cross_encoder: _Optional[_Iterable[float]] = ..., effort: _Optional[_Union[Effort, _Mapping]] = ...) -> None: ...
