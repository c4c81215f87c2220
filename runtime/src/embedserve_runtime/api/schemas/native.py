"""Bodies of the native `POST /v1/encode`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from embedserve_runtime.api.schemas.base import (
    UNION_MEMBER,
    ApiModel,
    Dimensions,
    Direction,
    ExpectedInput,
    FailFastList,
    Inputs,
    ModelId,
    Overflow,
    Positive,
    Truncate,
    TypedInputs,
    VectorSpace,
    is_none,
)
from embedserve_runtime.heads.quantization import OutputDtype

OutputName = Literal["dense", "sparse", "multi_vector", "tokens", "hidden"]
Encoding = Literal["json", "base64", "pgvector"]
# Not strict: values that are parsed already have the name, not the member.
Dtype = Annotated[OutputDtype, Field(strict=False)]


class NumberRanges(ApiModel):
    """The least and the largest number of each dimension, measured on a sample of vectors."""

    min: FailFastList[float] = Field(description="The least numbers.", examples=[[-0.1, -0.2]])
    max: FailFastList[float] = Field(description="The largest numbers.", examples=[[0.1, 0.2]])


class EncodeRequest(TypedInputs):
    """Body of `POST /v1/encode`."""

    paths = ("/v1/encode",)

    inputs: Inputs
    outputs: Annotated[FailFastList[OutputName], Field(min_length=1)] | None = Field(
        None,
        description="dense: a vector an input; sparse: weights of vocabulary entries; multi_vector: a vector for "
        "each token that counts; tokens: its tokens with their places; hidden: the encoder's last hidden state of "
        "each token, not normalized. All come from one forward pass. null: what the model is for.",
        examples=[["dense", "tokens"]],
    )
    top_k: Positive | None = Field(
        None, description="Keep the largest entries of sparse vectors.", examples=[64]
    )
    threshold: Annotated[float, Field(ge=0)] | None = Field(
        None, description="Keep entries of sparse vectors above it.", examples=[0.1]
    )
    sparse_tokens: bool | None = Field(
        None, description="Give sparse vectors with their entries' texts; null means false.", examples=[True]
    )
    sparse_map: bool | None = Field(
        None,
        description="Give sparse vectors as objects too, weight by the entry's text (Elasticsearch, OpenSearch); null "
        "means false.",
        examples=[True],
    )
    truncate: Truncate = None
    truncation_direction: Direction = None
    overflow: Overflow = None
    dimensions: Dimensions = None
    normalize: bool | None = Field(
        None, description="Scale each dense vector to length 1; null does as the model says.", examples=[True]
    )
    dtype: Dtype | None = Field(
        None, description="How the numbers of vectors are written; null means float32.", examples=["float32"]
    )
    encoding: Encoding | None = Field(
        None,
        description="base64: little-endian bytes of each vector. pgvector: its literals, `[0.1,0.2]` for vectors, "
        "`{1:0.5}/30522` for sparse ones, bits for binary and ubinary. null means json.",
        examples=["base64"],
    )
    ranges: Annotated[
        Annotated[NumberRanges, UNION_MEMBER] | Annotated[Literal["stored"], UNION_MEMBER] | None,
        ExpectedInput("an object with `min` and `max`, or 'stored'"),
        Field(
            union_mode="left_to_right",
            description="Of each dimension, for int8 and uint8; stored: those in the model's folder. null: each "
            "vector has a scale of its own, told in `scales`.",
            examples=["stored"],
        ),
    ] = None
    spans: (
        FailFastList[FailFastList[Annotated[FailFastList[int], Field(min_length=2, max_length=2)]]] | None
    ) = Field(
        None,
        description="For each input parts of its text, start and end in code points: `chunks` has a vector for "
        "each part, the mean of its tokens' states in the whole text (late chunking).",
        examples=[[[[0, 17], [18, 36]]]],
    )
    pool_factor: Annotated[float, Field(ge=1)] | None = Field(
        None, description="Pool the token vectors of a multi-vector to so many times fewer.", examples=[2]
    )


class EncodedSparse(ApiModel):
    """A sparse vector, indices ascending; with base64 little-endian int32 and float32 (float16 if asked for)."""

    indices: list[int] | str = Field(description="Places in the vocabulary.", examples=[[2054, 9207]])
    values: list[float] | str = Field(description="Their weights.", examples=[[0.5, 1.25]])
    tokens: list[str] | None = Field(
        None,
        exclude_if=is_none,
        description="Their texts, with `sparse_tokens`.",
        examples=[["what", "vector"]],
    )


class EncodedToken(ApiModel):
    """A token with its place in the input, in code points; null for special tokens, prompt and id arrays."""

    id: int = Field(description="Place in the vocabulary.", examples=[2054])
    text: str = Field(description="The token as the vocabulary has it.", examples=["what"])
    special: bool = Field(description="Whether it is a special token.", examples=[False])
    start: int | None = Field(description="Code point at which it starts.", examples=[0])
    end: int | None = Field(description="Code point before which it ends.", examples=[4])


class EncodeResponse(ApiModel):
    """Answer of `POST /v1/encode`: a member for each output asked for, an item for each input."""

    model: ModelId
    vector_space: VectorSpace
    dtype: Dtype = Field(description="How the numbers of vectors are written.", examples=["float32"])
    encoding: Encoding = Field(description="How vectors are written.", examples=["json"])
    token_counts: list[int] = Field(
        description="Tokens of each input, prompt and special tokens included.", examples=[[6]]
    )
    dense: list[list[float] | str] | None = Field(
        None, exclude_if=is_none, description="A vector an input.", examples=[[[0.6, 0.8]]]
    )
    scales: list[float] | None = Field(
        None,
        exclude_if=is_none,
        description="Comes with int8 and uint8 without `ranges`: the factor of each vector's numbers (less 128 for "
        "uint8).",
        examples=[[0.0063]],
    )
    sparse: list[EncodedSparse | str] | None = Field(
        None,
        exclude_if=is_none,
        description="A sparse vector an input.",
        examples=[[{"indices": [2054, 9207], "values": [0.5, 1.25]}]],
    )
    sparse_map: list[dict[str, float]] | None = Field(
        None,
        exclude_if=is_none,
        description="Sparse vectors as objects, weight by the entry's text.",
        examples=[[{"what": 0.5, "vector": 1.25}]],
    )
    multi_vector: list[list[list[float] | str] | str] | None = Field(
        None,
        exclude_if=is_none,
        description="Of each input a vector for each token that counts.",
        examples=[[[[0.6, 0.8], [0.8, 0.6]]]],
    )
    tokens: list[list[EncodedToken]] | None = Field(
        None,
        exclude_if=is_none,
        description="The tokens of each input.",
        examples=[[[{"id": 2054, "text": "what", "special": False, "start": 0, "end": 4}]]],
    )
    hidden: list[list[list[float] | str] | str] | None = Field(
        None,
        exclude_if=is_none,
        description="Of each input the last hidden state of each token.",
        examples=[[[[0.25, -1.5], [0.75, 2.0]]]],
    )
    chunks: list[list[list[float] | str]] | None = Field(
        None,
        exclude_if=is_none,
        description="Comes with `spans` and `overflow: chunk`: of each input a vector for each of its parts.",
        examples=[[[[0.6, 0.8], [0.8, 0.6]]]],
    )
    chunk_spans: list[list[list[int]]] | None = Field(
        None,
        exclude_if=is_none,
        description="Comes with `overflow`: where each chunk of each input lies, start and end in code points.",
        examples=[[[[0, 1800], [1801, 2400]]]],
    )
