"""Heads as data: what is done with the hidden states, and where a checkpoint keeps the tensors.

Read from a folder by `reading`, executed by `embedserve_runtime.heads`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from embedserve_runtime.model.architecture import Norm
from embedserve_runtime.model.pipeline import Activation, Pooling


class Task(StrEnum):
    """What a served model gives. RERANK is a classifier with one label."""

    EMBED = "embed"
    RERANK = "rerank"
    CLASSIFY = "classify"
    SPARSE = "sparse"


class ScoreFunction(StrEnum):
    """What makes scores of logits."""

    IDENTITY = "identity"
    SIGMOID = "sigmoid"
    SOFTMAX = "softmax"


class SparsePooling(StrEnum):
    """How the token rows of a sequence become one row."""

    MAX = "max"
    SUM = "sum"


@dataclass(frozen=True, slots=True)
class HeadLayer:
    """norm(activation(W x + b)), the norm where there is one.

    weight, bias: checkpoint tensors that may hold it, tried in order; an empty bias is none.
    norm_names: the same for the norm, without `.weight` and `.bias`.
    """

    in_features: int
    out_features: int
    weight: tuple[str, ...]
    bias: tuple[str, ...]
    activation: Activation = Activation.IDENTITY
    norm: Norm | None = None
    norm_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClassifierHead:
    """One vector a sequence by `pooling`, then the layers, of which the last gives a logit for each label.

    Without layers the logits come from elsewhere.
    """

    pooling: Pooling
    layers: tuple[HeadLayer, ...]
    labels: tuple[str, ...]
    scores: ScoreFunction


@dataclass(frozen=True, slots=True)
class SparseHead:
    """The layers on every token, of which the last gives a logit for each vocabulary entry; then
    log(1 + max(0, logit)), pooled over the tokens. log_twice: the logarithm is taken a second time before pooling.
    """

    layers: tuple[HeadLayer, ...]
    pooling: SparsePooling
    log_twice: bool = False

    @property
    def vocabulary(self) -> int:
        return self.layers[-1].out_features


Head = ClassifierHead | SparseHead


def head_outputs(head: Head) -> int:
    """Columns of a row that the head gives."""
    if isinstance(head, ClassifierHead):
        return len(head.labels)
    return head.layers[-1].out_features


def identity_of(head: Head) -> dict[str, object]:
    """What of the head is part of the vector-space identity, besides its tensors; labels and scores are not."""
    layers = [
        {
            "in": layer.in_features,
            "out": layer.out_features,
            "activation": layer.activation,
            "norm": None if layer.norm is None else {"kind": layer.norm.kind, "eps": layer.norm.eps},
        }
        for layer in head.layers
    ]
    if isinstance(head, ClassifierHead):
        return {"kind": "classifier", "pooling": head.pooling, "layers": layers}
    return {"kind": "sparse", "pooling": head.pooling, "log_twice": head.log_twice, "layers": layers}
