"""Bodies of the native `POST /v1/score`."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from embedserve_runtime.api.input_types import InputTypeName
from embedserve_runtime.api.schemas.base import (
    ApiModel,
    Direction,
    FailFastList,
    ModelId,
    PromptName,
    Query,
    RequestBody,
    Truncate,
    VectorSpace,
    is_none,
)

Weight = Annotated[float, Field(ge=0)] | None
Numbers = list[float] | None


class ScoreWeights(ApiModel):
    """The measures to take, each with its weight. With weight 0 a measure is told and adds nothing.

    A weight for anything else would add nothing without a word, so it is refused.
    """

    model_config = ConfigDict(extra="forbid")

    dense: Weight = Field(
        None,
        exclude_if=is_none,
        description="Product of the vectors; a cosine where the model normalizes them.",
        examples=[1.0],
    )
    sparse: Weight = Field(
        None,
        exclude_if=is_none,
        description="Sum of the products of the weights that both texts have.",
        examples=[0.3],
    )
    multi_vector: Weight = Field(
        None,
        exclude_if=is_none,
        description="Mean over the query's vectors of the largest product with a vector of the document.",
        examples=[1.0],
    )
    cross_encoder: Weight = Field(
        None, exclude_if=is_none, description="The model's logit of the pair.", examples=[1.0]
    )


class ScoreRequest(RequestBody):
    """Body of `POST /v1/score`."""

    paths = ("/v1/score",)

    query: Query
    documents: FailFastList[str] = Field(
        description="The texts to score.", examples=[["A list of numbers.", "A fruit."]]
    )
    weights: ScoreWeights | None = Field(
        None,
        description="The measures to take; null: every measure that the model has, each with weight 1.",
        examples=[{"dense": 1.0, "sparse": 0.3}],
    )
    divide_by_weights: bool | None = Field(
        None,
        description="Divide the weighted sum by the sum of the weights; null means true.",
        examples=[True],
    )
    task: InputTypeName | None = Field(
        None,
        description="The task whose adapter reads query and documents, of a model with several; null: the first.",
        examples=["text-matching"],
    )
    input_type: InputTypeName | None = Field(
        None, description="The same as `task`.", examples=["text-matching"]
    )
    query_prompt_name: PromptName = None
    document_prompt_name: PromptName = None
    truncate: Truncate = None
    truncation_direction: Direction = None


class ScoreMeasures(ApiModel):
    """A number for each document by each measure taken."""

    dense: Numbers = Field(
        None, exclude_if=is_none, description="Products of the vectors.", examples=[[0.83, 0.12]]
    )
    sparse: Numbers = Field(
        None, exclude_if=is_none, description="Sums of products of weights.", examples=[[1.9, 0.0]]
    )
    multi_vector: Numbers = Field(
        None, exclude_if=is_none, description="Means of the largest products.", examples=[[0.91, 0.34]]
    )
    cross_encoder: Numbers = Field(
        None, exclude_if=is_none, description="Logits of the pairs.", examples=[[4.2, -8.5]]
    )


class ScoreResponse(ApiModel):
    """Answer of `POST /v1/score`. Documents are in the order of the request."""

    model: ModelId
    vector_space: VectorSpace
    scores: list[float] = Field(description="The weighted sum of each document.", examples=[[0.83, 0.12]])
    measures: ScoreMeasures = Field(
        description="A number for each document by each measure taken.", examples=[{"dense": [0.83, 0.12]}]
    )
    weights: ScoreWeights = Field(description="The weights that were taken.", examples=[{"dense": 1.0}])
