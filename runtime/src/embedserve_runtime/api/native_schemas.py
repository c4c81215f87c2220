"""Bodies of the native `POST /v1/encode`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from embedserve_runtime.api.schemas import Dimensions, Direction, Inputs, PromptName, Truncate
from embedserve_runtime.heads.quantize import Precision

Output = Literal["dense", "tokens", "hidden"]


class EncodeBody(Struct, kw_only=True, frozen=True):
    """Body of `POST /v1/encode`."""

    inputs: Inputs
    outputs: Annotated[
        list[Output],
        Meta(
            min_length=1,
            description="dense: a vector an input; tokens: its tokens with their places; hidden: the encoder's "
            "last hidden state of each token, not normalised. All come from one forward pass.",
        ),
    ] = msgspec.field(default_factory=lambda: ["dense"])
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
        Literal["json", "base64"], Meta(description="base64: little-endian bytes of each vector.")
    ] = "json"


class EncodedToken(Struct, frozen=True):
    """A token with its place in the input, in code points; null for special tokens, prompt and id arrays."""

    id: int
    text: str
    special: bool
    start: int | None
    end: int | None


class EncodeAnswer(Struct, frozen=True, omit_defaults=True):
    """Answer of `POST /v1/encode`: a member for each output asked for, an item for each input.

    `scales` comes with int8 and uint8: the factor of each vector's numbers (less 128 for uint8).
    """

    model: str
    vector_space: str
    dtype: Precision
    encoding: Literal["json", "base64"]
    token_counts: list[int]
    dense: list[list[float] | str] | None = None
    scales: list[float] | None = None
    tokens: list[list[EncodedToken]] | None = None
    hidden: list[list[list[float]] | str] | None = None
