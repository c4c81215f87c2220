"""Turns packed hidden states into logits, and logits into scores, for classifiers and rerankers.

Sources: the `...ForSequenceClassification` classes and the text-classification pipeline of transformers, and
sentence-transformers' CrossEncoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embedserve_runtime.engines.base import FloatArray, PackedBatch
from embedserve_runtime.heads import dense
from embedserve_runtime.heads.activations import sigmoid
from embedserve_runtime.heads.layers import LoadedLayer, apply_layers
from embedserve_runtime.model.heads.description import ClassifierHead, ScoreFunction


@dataclass(frozen=True, slots=True, eq=False)
class LoadedClassifierHead:
    """A classifier with its tensors: (tokens, hidden) to logits (sequences, labels), float32."""

    head: ClassifierHead
    layers: Sequence[LoadedLayer]

    def __call__(self, hidden: FloatArray, batch: PackedBatch) -> FloatArray:
        if self.head.padding is not None:
            return apply_layers(self.layers, hidden[find_last_tokens(batch, self.head.padding)])
        return apply_layers(self.layers, dense.pool(hidden, batch.cu_seqlens, self.head.pooling))


def find_last_tokens(batch: PackedBatch, padding: int) -> NDArray[np.int64]:
    """Return the packed position of each sequence's last token that is not `padding`, or of its first token where all
    are; int64, (sequences,)."""
    places = np.arange(batch.tokens, dtype=np.int64)
    starts = batch.cu_seqlens[:-1].astype(np.int64)
    counted = np.where(batch.token_ids != padding, places, np.repeat(starts, batch.lengths))
    last: NDArray[np.int64] = np.maximum.reduceat(counted, starts)
    return last


def apply_score_function(values: FloatArray, function: ScoreFunction) -> FloatArray:
    """Turn logits (sequences, labels) into scores of the same shape."""
    match function:
        case ScoreFunction.IDENTITY:
            return values
        case ScoreFunction.SIGMOID:
            return sigmoid(values)
        case ScoreFunction.SOFTMAX:
            # The largest is subtracted first: exp overflows from 89 on.
            powers = np.exp(values - values.max(axis=1, keepdims=True))
            shares: FloatArray = powers / powers.sum(axis=1, keepdims=True)
            return shares
