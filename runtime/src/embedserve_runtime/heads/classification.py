"""Turns packed hidden states into logits, and logits into scores, for classifiers and rerankers.

Sources: the `...ForSequenceClassification` classes and the text-classification pipeline of transformers, and
sentence-transformers' CrossEncoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.heads import dense
from embedserve_runtime.heads.layers import HeadLayerWeights, apply_layers
from embedserve_runtime.model.heads.description import ClassifierHead, ScoreFunction

ScoreArray = NDArray[np.float32] | NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class LoadedClassifierHead:
    """A classifier with its tensors, from (tokens, hidden) to logits (sequences, labels), float32."""

    head: ClassifierHead
    layers: Sequence[HeadLayerWeights]

    def __call__(self, hidden: FloatArray, batch: PackedBatch) -> FloatArray:
        if self.head.padding is not None:
            return apply_layers(self.layers, hidden[find_last_tokens(batch, self.head.padding)])
        return apply_layers(self.layers, dense.pool(hidden, batch.cu_seqlens, self.head.pooling))


def find_last_tokens(batch: PackedBatch, padding: int) -> NDArray[np.int64]:
    """Return the packed position of each sequence's last token that is not `padding`, or of its first token where all
    are; int64, (sequences,)."""
    positions = np.arange(batch.tokens, dtype=np.int64)
    starts = batch.cu_seqlens[:-1].astype(np.int64)
    counted = np.where(batch.token_ids != padding, positions, np.repeat(starts, batch.lengths))
    last: NDArray[np.int64] = np.maximum.reduceat(counted, starts)
    return last


def apply_score_function(logits: FloatArray, function: ScoreFunction) -> ScoreArray:
    """Turn logits (sequences, labels) into scores of the same shape, in float64 unless they stay as they are.

    In float32 the sigmoid of every logit above 17 is 1, so that a client could no longer tell good documents apart.
    """
    if function is ScoreFunction.IDENTITY:
        return logits
    values = logits.astype(np.float64)
    if function is ScoreFunction.SIGMOID:
        # Overflows on neither side, and is exact to the last digits near 0 and near 1.
        scores: ScoreArray = np.exp(-np.logaddexp(0.0, -values))
        return scores
    # The largest is subtracted first: exp overflows from 710 on.
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    shares: ScoreArray = powers / powers.sum(axis=1, keepdims=True)
    return shares
