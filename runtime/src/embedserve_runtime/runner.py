"""A loaded model: the engine and the head behind one call; one class a task. The scheduler's engine thread owns it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from embedserve_runtime.engines.base import Engine, FloatArray, Int32Array, PackedBatch
from embedserve_runtime.heads import classification, dense, sparse
from embedserve_runtime.heads.layers import LoadedLayer
from embedserve_runtime.heads.sparse import SparseVector
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.heads.description import ClassifierHead, SparseHead
from embedserve_runtime.model.pipeline import Activation


class Runner(Protocol):
    """What the serving side sees of a model. `pooled` is called from one thread at a time."""

    @property
    def card(self) -> ModelCard: ...

    def pooled(self, batch: PackedBatch) -> FloatArray:
        """One row a sequence, float32, shape (sequences, card.pipeline.full_dimensions): vectors before cut and
        normalise; logits of the labels; or weights of all vocabulary entries. Raises EngineFailure.
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


class _EncoderRunner(ABC):
    """Encoder on an engine; what becomes of the hidden states is the task's own."""

    def __init__(self, card: ModelCard, engine: Engine) -> None:
        self._card = card
        self._engine = engine

    @property
    def card(self) -> ModelCard:
        return self._card

    def pooled(self, batch: PackedBatch) -> FloatArray:
        return self.with_hidden(batch)[0]

    def with_hidden(self, batch: PackedBatch) -> tuple[FloatArray, FloatArray]:
        hidden = self._engine.forward(batch)
        return self._rows(hidden, batch.cu_seqlens), hidden

    @abstractmethod
    def _rows(self, hidden: FloatArray, cu_seqlens: Int32Array) -> FloatArray:
        """One row a sequence, of packed hidden states."""


class ModelRunner(_EncoderRunner):
    """Pooling and the dense modules."""

    def __init__(self, card: ModelCard, engine: Engine, dense_weights: Sequence[DenseWeights]) -> None:
        super().__init__(card, engine)
        self._dense = tuple(dense_weights)

    def _rows(self, hidden: FloatArray, cu_seqlens: Int32Array) -> FloatArray:
        vectors = dense.pool_all(hidden, cu_seqlens, self._card.pipeline.pooling)
        for layer in self._dense:
            vectors = dense.dense(vectors, layer.weight, layer.bias, layer.activation)
        return vectors


class ClassifierRunner(_EncoderRunner):
    """The classifier: rerankers and classifiers. `heads.classification` makes scores."""

    def __init__(
        self, card: ModelCard, engine: Engine, head: ClassifierHead, layers: Sequence[LoadedLayer]
    ) -> None:
        super().__init__(card, engine)
        self._head = head
        self._layers = tuple(layers)

    def _rows(self, hidden: FloatArray, cu_seqlens: Int32Array) -> FloatArray:
        return classification.logits(hidden, cu_seqlens, self._head.pooling, self._layers)


class SparseRunner(_EncoderRunner):
    """The masked-LM head and pooling over the vocabulary."""

    def __init__(
        self, card: ModelCard, engine: Engine, head: SparseHead, layers: Sequence[LoadedLayer]
    ) -> None:
        super().__init__(card, engine)
        self._head = head
        self._layers = tuple(layers)

    def _rows(self, hidden: FloatArray, cu_seqlens: Int32Array) -> FloatArray:
        return sparse.rows(hidden, cu_seqlens, self._head, self._layers)

    def sparse(
        self, batch: PackedBatch, *, top_k: int | None = None, threshold: float = 0.0
    ) -> list[SparseVector]:
        """One sparse vector a sequence, without ever holding all dense rows. Raises EngineFailure."""
        hidden = self._engine.forward(batch)
        return sparse.vectors(
            hidden, batch.cu_seqlens, self._head, self._layers, top_k=top_k, threshold=threshold
        )
