"""Bodies of the native `POST /v1/score`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from embedserve_runtime.api.schemas import Direction, ModelName, PromptName, Truncate

Weight = Annotated[float, Meta(ge=0)] | None


class ScoreWeights(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """The measures to take, each with its weight. With weight 0 a measure is told and adds nothing."""

    dense: Annotated[
        Weight, Meta(description="Product of the vectors; a cosine where the model normalises them.")
    ] = None
    sparse: Annotated[
        Weight, Meta(description="Sum of the products of the weights that both texts have.")
    ] = None
    multi_vector: Annotated[
        Weight,
        Meta(
            description="Mean over the query's vectors of the largest product with a vector of the document."
        ),
    ] = None
    cross_encoder: Annotated[Weight, Meta(description="The model's logit of the pair.")] = None


class ScoreBody(Struct, kw_only=True, frozen=True):
    """Body of `POST /v1/score`."""

    query: str
    documents: list[str]
    model: ModelName = None
    weights: Annotated[
        ScoreWeights | None, Meta(description="null: every measure that the model has, each with weight 1.")
    ] = None
    divide_by_weights: Annotated[
        bool, Meta(description="Divide the weighted sum by the sum of the weights.")
    ] = True
    query_prompt_name: PromptName = None
    document_prompt_name: PromptName = None
    truncate: Truncate = None
    truncation_direction: Direction = "Right"


class ScoreMeasures(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A number for each document by each measure taken."""

    dense: list[float] | None = None
    sparse: list[float] | None = None
    multi_vector: list[float] | None = None
    cross_encoder: list[float] | None = None


class ScoreAnswer(Struct, frozen=True):
    """Answer of `POST /v1/score`. Documents are in the order of the request."""

    model: str
    vector_space: str
    scores: list[float]
    measures: ScoreMeasures
    weights: ScoreWeights
