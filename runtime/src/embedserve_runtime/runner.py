"""A loaded model: the engine and the pooling head behind one call. The scheduler's engine thread owns it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from embedserve_runtime.engines.base import Engine, FloatArray, PackedBatch
from embedserve_runtime.heads import dense
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.pipeline import Activation


class Runner(Protocol):
    """What the serving side sees of a model. `pooled` is called from one thread at a time."""

    @property
    def card(self) -> ModelCard: ...

    def pooled(self, batch: PackedBatch) -> FloatArray:
        """Pooled vectors before cut and normalise, float32, shape (sequences, card.pipeline.full_dimensions).

        Raises EngineFailure.
        """
        ...

    def with_hidden(self, batch: PackedBatch) -> tuple[FloatArray, FloatArray]:
        """What `pooled` gives, and the packed hidden states it was made from, from one forward pass.

        Hidden states: float32, shape (tokens, encoder.hidden_size). Raises EngineFailure.
        """
        ...


@dataclass(frozen=True, slots=True)
class DenseWeights:
    """One dense module's arrays: weight (out, in), bias (out,) or None."""

    weight: FloatArray
    bias: FloatArray | None
    activation: Activation


class ModelRunner:
    """Encoder on an engine, then pooling and the dense modules."""

    def __init__(self, card: ModelCard, engine: Engine, dense_weights: Sequence[DenseWeights]) -> None:
        self._card = card
        self._engine = engine
        self._dense = tuple(dense_weights)

    @property
    def card(self) -> ModelCard:
        return self._card

    def pooled(self, batch: PackedBatch) -> FloatArray:
        return self.with_hidden(batch)[0]

    def with_hidden(self, batch: PackedBatch) -> tuple[FloatArray, FloatArray]:
        hidden = self._engine.forward(batch)
        vectors = dense.pool_all(hidden, batch.cu_seqlens, self._card.pipeline.pooling)
        for layer in self._dense:
            vectors = dense.dense(vectors, layer.weight, layer.bias, layer.activation)
        return vectors, hidden
