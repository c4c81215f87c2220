"""Bodies of the native `POST /v1/encode`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from embedserve_runtime.api.schemas import Dimensions, Direction, Inputs, PromptName, Truncate
from embedserve_runtime.heads.quantize import Precision

OutputName = Literal["dense", "sparse", "multi_vector", "tokens", "hidden"]
Encoding = Literal["json", "base64", "pgvector"]


class NumberRanges(Struct, kw_only=True, frozen=True):
    """The least and the largest number of each dimension, measured on a sample of vectors."""

    min: list[float]
    max: list[float]


class EncodeBody(Struct, kw_only=True, frozen=True):
    """Body of `POST /v1/encode`."""

    inputs: Inputs
    outputs: Annotated[
        Annotated[list[OutputName], Meta(min_length=1)] | None,
        Meta(
            description="dense: a vector an input; sparse: weights of vocabulary entries; multi_vector: a vector for "
            "each token that counts; tokens: its tokens with their places; hidden: the encoder's last hidden state of "
            "each token, not normalised. All come from one forward pass. null: what the model is for."
        ),
    ] = None
    top_k: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="Keep the largest entries of sparse vectors.")
    ] = None
    threshold: Annotated[
        Annotated[float, Meta(ge=0)] | None, Meta(description="Keep entries of sparse vectors above it.")
    ] = None
    sparse_tokens: Annotated[bool, Meta(description="Sparse vectors with their entries' texts.")] = False
    sparse_map: Annotated[
        bool,
        Meta(
            description="Sparse vectors as objects too, weight by the entry's text (Elasticsearch, OpenSearch)."
        ),
    ] = False
    input_type: Annotated[
        Literal["query", "document"] | None,
        Meta(
            description="What the inputs are: chooses a prompt, and the way of queries of a model that has one."
        ),
    ] = None
    prompt_name: PromptName = None
    prompt: Annotated[
        str | None, Meta(description="Text put before each input, instead of a prompt by name.")
    ] = None
    truncate: Truncate = None
    truncation_direction: Direction = "Right"
    dimensions: Dimensions = None
    normalize: Annotated[
        bool | None, Meta(description="Scale each dense vector to length 1; null does as the model says.")
    ] = None
    dtype: Annotated[Precision, Meta(description="How the numbers of vectors are written.")] = (
        Precision.FLOAT32
    )
    encoding: Annotated[
        Encoding,
        Meta(
            description="base64: little-endian bytes of each vector. pgvector: its literals, `[0.1,0.2]` for vectors, "
            "`{1:0.5}/30522` for sparse ones, bits for binary and ubinary."
        ),
    ] = "json"
    ranges: Annotated[
        NumberRanges | Literal["stored"] | None,
        Meta(
            description="Of each dimension, for int8 and uint8; stored: those in the model's folder. null: each vector "
            "has a scale of its own, told in `scales`."
        ),
    ] = None
    spans: Annotated[
        list[list[Annotated[list[int], Meta(min_length=2, max_length=2)]]] | None,
        Meta(
            description="For each input parts of its text, start and end in code points: `chunks` has a vector for "
            "each part, the mean of its tokens' states in the whole text (late chunking)."
        ),
    ] = None
    pool_factor: Annotated[
        Annotated[float, Meta(ge=1)] | None,
        Meta(description="Pool the token vectors of a multi-vector to so many times fewer."),
    ] = None


class EncodedSparse(Struct, frozen=True, omit_defaults=True):
    """A sparse vector, indices ascending; with base64 little-endian int32 and float32 (float16 if asked for)."""

    indices: list[int] | str
    values: list[float] | str
    tokens: list[str] | None = None


class EncodedToken(Struct, frozen=True):
    """A token with its place in the input, in code points; null for special tokens, prompt and id arrays."""

    id: int
    text: str
    special: bool
    start: int | None
    end: int | None


class EncodeAnswer(Struct, frozen=True, omit_defaults=True):
    """Answer of `POST /v1/encode`: a member for each output asked for, an item for each input.

    `scales` comes with int8 and uint8 without `ranges`: the factor of each vector's numbers (less 128 for uint8).
    `chunks` comes with `spans`: of each input a vector for each of its spans.
    """

    model: str
    vector_space: str
    dtype: Precision
    encoding: Encoding
    token_counts: list[int]
    dense: list[list[float] | str] | None = None
    scales: list[float] | None = None
    sparse: list[EncodedSparse | str] | None = None
    sparse_map: list[dict[str, float]] | None = None
    multi_vector: list[list[list[float] | str] | str] | None = None
    tokens: list[list[EncodedToken]] | None = None
    hidden: list[list[list[float] | str] | str] | None = None
    chunks: list[list[list[float] | str]] | None = None
