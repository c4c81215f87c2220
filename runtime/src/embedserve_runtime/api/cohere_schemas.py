"""Bodies of Cohere's `POST /v2/embed`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from embedserve_runtime.api.schemas import ModelName

EmbeddingType = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]
InputType = Literal["search_document", "search_query", "classification", "clustering", "image"]


class CohereContent(Struct, frozen=True):
    """A part of an input; only texts are embedded."""

    type: str
    text: str | None = None


class CohereInput(Struct, frozen=True):
    """An input in parts, which are joined with blanks."""

    content: list[CohereContent]


class CohereBody(Struct, kw_only=True, frozen=True):
    """Body of `POST /v2/embed`: `texts` or `inputs`."""

    texts: list[str] | None = None
    inputs: list[CohereInput] | None = None
    images: list[str] | None = None
    model: ModelName = None
    input_type: Annotated[
        InputType | None, Meta(description="Chooses a prompt by its name, if the model has one for it.")
    ] = None
    embedding_types: Annotated[list[EmbeddingType] | None, Meta(description="null means float.")] = None
    output_dimension: Annotated[int, Meta(ge=1)] | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    truncate: Annotated[
        Literal["NONE", "START", "END"], Meta(description="The side that is cut off; NONE refuses instead.")
    ] = "END"


class CohereEmbeddings(Struct, frozen=True, rename={"floats": "float"}, omit_defaults=True):
    """A list of vectors for each type asked for."""

    floats: list[list[float]] | None = None
    int8: list[list[int]] | None = None
    uint8: list[list[int]] | None = None
    binary: list[list[int]] | None = None
    ubinary: list[list[int]] | None = None
    base64: list[str] | None = None


class CohereVersion(Struct, frozen=True):
    """Of Cohere's API."""

    version: Literal["1", "2"]


class CohereUnits(Struct, frozen=True):
    """Tokens after truncation, with prompt and special tokens."""

    input_tokens: int


class CohereMeta(Struct, frozen=True):
    """Counts, where Cohere has them."""

    api_version: CohereVersion
    billed_units: CohereUnits


class CohereAnswer(Struct, frozen=True):
    """Answer of `POST /v2/embed`."""

    id: str
    embeddings: CohereEmbeddings
    texts: list[str]
    meta: CohereMeta
    response_type: Literal["embeddings_by_type"]
