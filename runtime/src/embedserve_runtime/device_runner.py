"""A loaded model whose heads run where its encoder runs: only what was asked for leaves the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from embedserve_runtime.engines.base import FloatArray, Int32Array, PackedBatch
from embedserve_runtime.engines.torch.engine import TorchEngine
from embedserve_runtime.engines.torch.graphs import Forward
from embedserve_runtime.engines.torch.heads import HostLayer, PooledHead, VocabularyHead
from embedserve_runtime.engines.torch.landing import Landing, SparseLanding
from embedserve_runtime.heads.classification import Classifier
from embedserve_runtime.heads.dense import DenseHead
from embedserve_runtime.heads.layers import LoadedLayer
from embedserve_runtime.heads.sparse import Splade
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.results import Output, Results, SparseVector
from embedserve_runtime.runner import Heads


@dataclass(frozen=True, slots=True, eq=False)
class Submitted:
    """A batch on the device: parts of consecutive sequences, each with its results on their way to the host."""

    parts: Sequence[_Part]

    def results(self) -> Results:
        """Waits for them."""
        return Results(
            dense=_rows([part.dense for part in self.parts]),
            logits=_rows([part.logits for part in self.parts]),
            sparse=_sparse([part.sparse for part in self.parts]),
            hidden=_hidden([(part.hidden, part.bounds) for part in self.parts]),
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    bounds: Int32Array
    dense: Landing | None
    logits: Landing | None
    sparse: SparseLanding | None
    hidden: Landing | None


class DeviceRunner:
    """The engine and the heads on one device; the graphs are captured when it is made."""

    def __init__(
        self, card: ModelCard, engine: TorchEngine, heads: Heads, most_tokens: int | None = None
    ) -> None:
        """heads: as they are on the host; their arrays are copied. most_tokens: of a batch, None if not known."""
        self._card = card
        self._engine = engine
        self._kind = Output.LOGITS if isinstance(heads.logits, Classifier) else Output.DENSE
        self._vocabulary: VocabularyHead | None = None
        if isinstance(heads.sparse, Splade):
            layers = [_layer(layer) for layer in heads.sparse.layers]
            self._vocabulary = VocabularyHead(heads.sparse.head, layers, engine.device, engine.dtype)
        engine.prepare(_pooled_head(heads, engine), most_tokens)

    @property
    def card(self) -> ModelCard:
        return self._card

    @property
    def out_of_memory(self) -> int:
        """How often a batch did not fit into the device's memory."""
        return self._engine.memory.failures

    def run(self, batch: PackedBatch, wanted: Output) -> Results:
        """Raises EngineFailure."""
        return self.submit(batch, wanted).results()

    def submit(self, batch: PackedBatch, wanted: Output) -> Submitted:
        """Queue the batch; another may be submitted before the results of this one are read. Raises EngineFailure."""
        needs_hidden = bool(wanted & (Output.HIDDEN | Output.SPARSE))
        return Submitted(
            self._engine.run(batch, lambda done: self._take(done, wanted), needs_hidden=needs_hidden)
        )

    def _take(self, done: Forward, wanted: Output) -> _Part:
        rows = None if done.rows is None or self._kind not in wanted else Landing.of(done.rows)
        return _Part(
            bounds=done.bounds,
            dense=rows if self._kind is Output.DENSE else None,
            logits=rows if self._kind is Output.LOGITS else None,
            sparse=SparseLanding.of(self._vocabulary(done.hidden, done.batch))
            if self._vocabulary is not None and done.hidden is not None and Output.SPARSE in wanted
            else None,
            hidden=Landing.of(done.hidden) if done.hidden is not None and Output.HIDDEN in wanted else None,
        )


def _pooled_head(heads: Heads, engine: TorchEngine) -> PooledHead | None:
    if isinstance(heads.dense, DenseHead):
        layers = [HostLayer(layer.weight, layer.bias, layer.activation) for layer in heads.dense.layers]
        return PooledHead(heads.dense.pooling, layers, engine.device)
    if isinstance(heads.logits, Classifier):
        layers = [_layer(layer) for layer in heads.logits.layers]
        return PooledHead([heads.logits.head.pooling], layers, engine.device)
    return None


def _layer(loaded: LoadedLayer) -> HostLayer:
    return HostLayer(
        loaded.weight,
        loaded.bias,
        loaded.layer.activation,
        loaded.layer.norm,
        loaded.norm_weight,
        loaded.norm_bias,
    )


def _rows(parts: Sequence[Landing | None]) -> FloatArray | None:
    arrays = [part.array() for part in parts if part is not None]
    if not arrays:
        return None
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _sparse(parts: Sequence[SparseLanding | None]) -> list[SparseVector] | None:
    given = [part for part in parts if part is not None]
    if not given:
        return None
    return [SparseVector(indices, values) for part in given for indices, values in part.rows()]


def _hidden(parts: Sequence[tuple[Landing | None, Int32Array]]) -> list[FloatArray] | None:
    given = [(part.array(), bounds) for part, bounds in parts if part is not None]
    if not given:
        return None
    return [one for array, bounds in given for one in np.split(array, bounds[1:-1])]
