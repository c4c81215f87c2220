"""Maps our parameter names to the tensors of a checkpoint that a description needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorSource:
    """The tensor of a checkpoint in which a parameter is stored, or one of `parts` equal row blocks of it (fused
    products).

    transpose: the checkpoint keeps it as (in_features, out_features).
    """

    tensor: str
    part: int = 0
    parts: int = 1
    transpose: bool = False


@dataclass(frozen=True, slots=True)
class ParameterNames:
    """The map from our parameter names to a checkpoint's.

    prefixes: put before every tensor name, tried in order; the first under which the word embeddings exist is taken.
    sources: our name, with `{layer}` for the layer's number, to the tensors that it may be read from, tried in order.
    """

    prefixes: tuple[str, ...]
    sources: Mapping[str, tuple[TensorSource, ...]]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A tensor that an architecture needs.

    name: ours; pattern: the same with `{layer}` for the layer's number.
    """

    name: str
    pattern: str
    layer: int | None
    shape: Shape
