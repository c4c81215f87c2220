"""Bodies of the probes and of the management port."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from embedserve_runtime.api.schemas.base import ApiModel, VectorSpace

Space = Annotated[
    str,
    Field(
        pattern="^vs[12]-[0-9a-f]{20}$",
        description="The vector space that the service's name stands for.",
        examples=["vs2-0123456789abcdef0123"],
    ),
]


class ProbeResponse(ApiModel):
    """Answer of the probes: a phase, and a sentence about it."""

    status: str = Field(description="The phase of the process.", examples=["Ready"])
    message: str = Field(description="A sentence about it.", examples=["the model is loaded"])


class CurrentRequest(ApiModel):
    """Body of `PUT /current`: the vector space that the service's name stands for."""

    vector_space: Space


class CurrentResponse(ApiModel):
    """Answer of `GET /current` and `PUT /current`: which vector space this process has."""

    vector_space: VectorSpace
    current: bool = Field(
        description="Whether the process answers requests that come by the service's name.", examples=[True]
    )


class SelfCheck(ApiModel):
    """Answer of `GET /selfcheck`; sound vectors have no problems."""

    vector_space: VectorSpace
    former_vector_space: str | None = Field(
        default=None,
        description="The identity that releases before `vs2-` gave it; null where they ran the model in another way.",
        examples=["vs1-0978181612db7ef023ab"],
    )
    compute: str = Field(
        description="What computes the vectors: a number type, with the digest of a converted file.",
        examples=["int8@1f0c54d0a9e2", "float32"],
    )
    min_cosine: float | None = Field(
        description="Least cosine of a text's vector to that of a more exact precision; null: not measured.",
        examples=[0.9993],
    )
    dimensions: int = Field(description="Numbers of a vector.", examples=[384])
    outputs: list[str] = Field(description="What the model makes.", examples=[["dense"]])
    problems: list[str] = Field(
        description="What is wrong with the vectors.",
        examples=[["different texts gave the same vector"]],
    )
