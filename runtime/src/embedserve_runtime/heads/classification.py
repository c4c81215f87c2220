"""Packed hidden states to logits, and logits to scores: classifiers and rerankers.

Sources: the `...ForSequenceClassification` classes and the text-classification pipeline of transformers, and
sentence-transformers' CrossEncoder.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embedserve_runtime.engines.base import FloatArray, Int32Array
from embedserve_runtime.heads import dense
from embedserve_runtime.heads.activations import sigmoid
from embedserve_runtime.heads.layers import LoadedLayer, run
from embedserve_runtime.model.heads.description import ScoreFunction
from embedserve_runtime.model.pipeline import Pooling


def logits(
    hidden: FloatArray, cu_seqlens: Int32Array, pooling: Pooling, layers: Sequence[LoadedLayer]
) -> FloatArray:
    """(tokens, hidden) to (sequences, labels), float32."""
    return run(layers, dense.pool(hidden, cu_seqlens, pooling))


def scores(values: FloatArray, function: ScoreFunction) -> FloatArray:
    """Scores of logits (sequences, labels), the same shape."""
    match function:
        case ScoreFunction.IDENTITY:
            return values
        case ScoreFunction.SIGMOID:
            return sigmoid(values)
        case ScoreFunction.SOFTMAX:
            # The largest is taken off first: exp overflows from 89 on.
            powers = np.exp(values - values.max(axis=1, keepdims=True))
            shares: FloatArray = powers / powers.sum(axis=1, keepdims=True)
            return shares
