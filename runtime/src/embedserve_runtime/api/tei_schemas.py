"""Bodies of the other TEI routes: requests, and the answers that are objects."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from embedserve_runtime.api.schemas import Direction, Inputs, PromptName, Truncate


class TokensBody(Struct, kw_only=True, frozen=True):
    """Body of `POST /embed_all` and `POST /embed_sparse`."""

    inputs: Inputs
    truncate: Truncate = None
    truncation_direction: Direction = "Right"
    prompt_name: PromptName = None


class RerankBody(Struct, kw_only=True, frozen=True):
    """Body of `POST /rerank`."""

    query: str
    texts: list[str]
    truncate: Truncate = None
    truncation_direction: Direction = "Right"
    raw_scores: Annotated[bool, Meta(description="Scores as the model gives them, no sigmoid.")] = False
    return_text: bool = False


class PredictBody(Struct, kw_only=True, frozen=True):
    """Body of `POST /predict`."""

    inputs: Annotated[
        str | list[str | list[str]],
        Meta(description="A text, a pair of texts, or a list of arrays of one text or two."),
    ]
    truncate: Truncate = None
    truncation_direction: Direction = "Right"
    raw_scores: Annotated[bool, Meta(description="Scores as the model gives them, no softmax.")] = False


class SimilarityInputs(Struct, frozen=True):
    """What is compared with what."""

    source_sentence: str
    sentences: list[str]


class SimilarityParameters(Struct, kw_only=True, frozen=True):
    """How the texts are embedded."""

    truncate: Truncate = None
    truncation_direction: Direction = "Right"
    prompt_name: PromptName = None


class SimilarityBody(Struct, kw_only=True, frozen=True):
    """Body of `POST /similarity`."""

    inputs: SimilarityInputs
    parameters: SimilarityParameters | None = None


# Beside what TEI has.
InputType = Annotated[
    Literal["query", "document"] | None,
    Meta(
        description="What the inputs are: a model that treats queries in another way may have another tokenizer for "
        "them; of texts it chooses the prompt, too."
    ),
]


class TokenizeBody(Struct, kw_only=True, frozen=True):
    """Body of `POST /tokenize`."""

    inputs: str | list[str]
    add_special_tokens: bool = True
    prompt_name: PromptName = None
    input_type: InputType = None


class DecodeBody(Struct, kw_only=True, frozen=True):
    """Body of `POST /decode`."""

    ids: Annotated[list[int | list[int]], Meta(description="One array of token ids, or a list of them.")]
    skip_special_tokens: bool = True
    input_type: InputType = None


class VertexBody(Struct, frozen=True):
    """Body of `POST /vertex`: each instance is a body of `/embed` (or of `/rerank`)."""

    instances: list[msgspec.Raw]


class TokenItem(Struct, frozen=True):
    """A token; start and stop are UTF-8 byte offsets into prompt + text, null for special tokens."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class SparseItem(Struct, frozen=True):
    """An entry of a sparse vector: its place in the vocabulary and its weight."""

    index: int
    value: float


class RankItem(Struct, frozen=True, omit_defaults=True):
    """A text by its place in the request, with its score."""

    index: int
    score: float
    text: str | None = None


class PredictItem(Struct, frozen=True):
    """A label with its score."""

    score: float
    label: str
