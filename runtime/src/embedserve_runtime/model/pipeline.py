"""Describes what happens to hidden states after the encoder: pooling, dense layers, truncation and normalization.

Read from a sentence-transformers folder by `modules`; executed by `heads`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from embedserve_runtime.model.activations import Activation
from embedserve_runtime.model.canonical import NOT_HASHED


class Pooling(StrEnum):
    """The operation that combines the hidden states of a sequence into one vector."""

    CLS = "cls"
    MEAN = "mean"
    MEAN_SQRT = "mean_sqrt"  # sum / sqrt(length)
    WEIGHTED_MEAN = "weighted_mean"  # token i of 1..n weighs i
    MAX = "max"
    LAST = "last"


@dataclass(frozen=True, slots=True)
class DenseLayer:
    """A sentence-transformers Dense module: y = activation(W x + b).

    folder: where its weights lie, relative to the model folder.
    residual: x is added to y, by a product of its own, R x, where the two have different sizes.
    """

    folder: str = field(metadata=NOT_HASHED)
    in_features: int
    out_features: int
    bias: bool
    activation: Activation
    residual: bool = False

    @property
    def projects_residual(self) -> bool:
        """Return whether the layer multiplies its residual by a matrix R."""
        return self.residual and self.in_features != self.out_features


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Turns packed hidden states into vectors: poolings, concatenated; dense layers; truncation; L2 normalization.

    dimensions: length of the vectors served by default, after the cut.
    full_dimensions: length before the cut.
    include_prompt: whether the tokens of a prompt are pooled.
    """

    pooling: tuple[Pooling, ...]
    dense: tuple[DenseLayer, ...]
    normalize: bool
    dimensions: int
    full_dimensions: int
    include_prompt: bool = True

    @property
    def pooling_name(self) -> str:
        """The poolings as one string, such as "mean" or "cls+mean"."""
        return "+".join(self.pooling)
