"""Runs a loaded model whose heads run on the device of its encoder, so that only what was asked for leaves it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from embedserve_runtime.engines.torch.engine import TorchEngine
from embedserve_runtime.engines.torch.graphs import DeviceOutput, OutputLevel
from embedserve_runtime.engines.torch.heads import (
    ConcatenatedHead,
    HostLayer,
    PooledHead,
    RowHead,
    TokenLayers,
    TokenRowHead,
    VocabularyHead,
)
from embedserve_runtime.engines.torch.host_transfer import HostTransfer, SparseTransfer, TokenTransfer
from embedserve_runtime.forward.arrays import BoolArray, FloatArray
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.outputs import ModelOutput, OutputKind, SparseVector
from embedserve_runtime.heads.classification import LoadedClassifierHead
from embedserve_runtime.heads.dense import NORMALIZE_EPS, DenseHead, RoutedHead, select_by_role
from embedserve_runtime.heads.layers import HeadLayerWeights
from embedserve_runtime.heads.sparse import LoadedSparseHead
from embedserve_runtime.heads.token_heads import LoadedLexicalHead, LoadedMultiVectorHead
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.runners.base import EngineRunner, Heads

T = TypeVar("T")
S = TypeVar("S", bound=np.generic)

# What the rows of a part will be once they have arrived.
PendingResult = Callable[[], T]


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Consecutive sequences of a batch whose results are being copied to the host; None for what is not asked for."""

    dense: PendingResult[FloatArray] | None = None
    logits: PendingResult[FloatArray] | None = None
    sparse: PendingResult[list[SparseVector]] | None = None
    multi_vectors: PendingResult[list[FloatArray]] | None = None
    hidden: PendingResult[list[FloatArray]] | None = None
    is_finite: PendingResult[BoolArray] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class SubmittedBatch:
    """A batch that is queued on a device."""

    parts: Sequence[_Part]

    def results(self) -> ModelOutput:
        """Wait for the results."""
        parts = self.parts
        return ModelOutput(
            dense=_concatenate_rows([part.dense() for part in parts if part.dense is not None]),
            logits=_concatenate_rows([part.logits() for part in parts if part.logits is not None]),
            sparse=_concatenate_lists([part.sparse() for part in parts if part.sparse is not None]),
            multi_vectors=_concatenate_lists(
                [part.multi_vectors() for part in parts if part.multi_vectors is not None]
            ),
            hidden=_concatenate_lists([part.hidden() for part in parts if part.hidden is not None]),
            is_finite=_concatenate_rows([part.is_finite() for part in parts if part.is_finite is not None]),
        )


class DeviceRunner(EngineRunner[TorchEngine]):
    """The engine and the heads on one device; the graphs are captured when it is made.

    heads: as they are on the host; their arrays are copied.
    """

    def __init__(self, card: ModelCard, engine: TorchEngine, heads: Heads) -> None:
        super().__init__(card, engine)
        self._pooled: OutputKind | None = None
        self._routed = False
        self._takes: dict[OutputKind, Callable[[DeviceOutput, PackedBatch], _Part]] = {
            OutputKind.HIDDEN: _take_hidden
        }
        # What of these is made of less than hidden states.
        self._needs: dict[OutputKind, OutputLevel] = {}
        self._assign_heads(heads)

    def _assign_heads(self, heads: Heads) -> None:
        """Put each head on the device."""
        device = self._engine.device
        pooled: RowHead | None = None
        token_head: TokenRowHead | None = None
        if isinstance(heads.dense, DenseHead):
            self._pooled, pooled = (
                OutputKind.DENSE,
                PooledHead(heads.dense.pooling, to_host_layers(heads.dense.layers), device),
            )
        if isinstance(heads.dense, RoutedHead):
            both = [
                PooledHead(head.pooling, to_host_layers(head.layers), device)
                for head in (heads.dense.documents, heads.dense.queries)
            ]
            self._pooled, self._routed, pooled = OutputKind.DENSE, True, ConcatenatedHead(both)
        if isinstance(heads.logits, LoadedClassifierHead) and heads.logits.head.padding is None:
            layers = to_host_layers(heads.logits.layers)
            self._pooled = OutputKind.LOGITS
            pooled = PooledHead([heads.logits.head.pooling], layers, device)
        elif heads.logits is not None:
            # Which token counts depends on the ids, so the host chooses it.
            self._takes[OutputKind.LOGITS] = _take_on_host(heads.logits)
        if isinstance(heads.sparse, LoadedSparseHead):
            vocabulary = VocabularyHead(
                heads.sparse.head, to_host_layers(heads.sparse.layers), device, self._engine.dtype
            )
            self._takes[OutputKind.SPARSE] = _take_from_vocabulary(vocabulary)
        if isinstance(heads.sparse, LoadedLexicalHead):
            token_head = TokenLayers(to_host_layers(heads.sparse.layers), device)
            self._takes[OutputKind.SPARSE] = _take_lexical(heads.sparse, token_head)
            self._needs[OutputKind.SPARSE] = OutputLevel.TOKEN_ROWS
        if isinstance(heads.multi_vectors, LoadedMultiVectorHead):
            head = heads.multi_vectors
            finish = TokenLayers(
                to_host_layers(head.layers),
                device,
                normalize_from=float(NORMALIZE_EPS) if head.head.normalize else None,
            )
            self._takes[OutputKind.MULTI_VECTOR] = _take_vectors(head, finish)
        self._engine.prepare(pooled, token_head=token_head)

    @property
    def max_in_flight(self) -> int:
        """Large batches overlap; of small ones the next is queued when one ends."""
        return 2

    def run(self, batch: PackedBatch, outputs: OutputKind) -> ModelOutput:
        """Run a batch and wait for its results. Raises EngineFailure."""
        return self.submit(batch, outputs).results()

    def submit(self, batch: PackedBatch, outputs: OutputKind) -> SubmittedBatch:
        """Queue the batch; another may be submitted before the results of this one are read. Raises EngineFailure.

        Not from two threads at a time; results are read on any.
        """
        takes = {output: take for output, take in self._takes.items() if output in outputs}
        forward_output = max(
            (self._needs.get(output, OutputLevel.HIDDEN) for output in takes), default=OutputLevel.ROWS
        )

        def take_parts(done: DeviceOutput, part: PackedBatch) -> _Part:
            result = _Part()
            if self._pooled is not None and self._pooled in outputs:
                rows = done.start_copy().wait
                if self._routed:
                    rows = partial(_select_roles, rows, part)
                result = _Part(dense=rows) if self._pooled is OutputKind.DENSE else _Part(logits=rows)
            for take in takes.values():
                result = _merge_parts(result, take(done, part))
            return result

        return SubmittedBatch(self._engine.run(batch, take_parts, forward_output=forward_output))


def _select_roles(rows: PendingResult[FloatArray], batch: PackedBatch) -> FloatArray:
    """Take the rows of each sequence's role, from rows for documents followed by those for queries."""
    documents, queries = np.split(rows(), 2, axis=1)
    return documents if batch.queries is None else select_by_role(documents, queries, batch.queries)


def _take_hidden(done: DeviceOutput, batch: PackedBatch) -> _Part:
    transfer = TokenTransfer.start(done.states)
    return _Part(
        hidden=lambda: np.split(transfer.rows.wait(), batch.cu_seqlens[1:-1]),
        is_finite=lambda: transfer.find_finite(batch.cu_seqlens[:-1]),
    )


def _take_on_host(
    head: Callable[[FloatArray, PackedBatch], FloatArray],
) -> Callable[[DeviceOutput, PackedBatch], _Part]:
    def take(done: DeviceOutput, batch: PackedBatch) -> _Part:
        transfer = HostTransfer.start(done.states)
        return _Part(logits=lambda: head(transfer.wait(), batch))

    return take


def _take_from_vocabulary(head: VocabularyHead) -> Callable[[DeviceOutput, PackedBatch], _Part]:
    def take(done: DeviceOutput, _: PackedBatch) -> _Part:
        transfer = SparseTransfer.start(head(done.states, done.batch))
        return _Part(
            sparse=lambda: [SparseVector(indices, values) for indices, values in transfer.wait_rows()]
        )

    return take


def _take_lexical(
    head: LoadedLexicalHead, layers: TokenRowHead
) -> Callable[[DeviceOutput, PackedBatch], _Part]:
    """Take one weight a token from the device; the host finds the largest of each id."""
    rest = replace(head, layers=())

    def take(done: DeviceOutput, batch: PackedBatch) -> _Part:
        transfer = done.start_token_copy(layers)
        return _Part(sparse=lambda: rest(transfer.wait(), batch))

    return take


def _take_vectors(
    head: LoadedMultiVectorHead, layers: TokenLayers
) -> Callable[[DeviceOutput, PackedBatch], _Part]:
    """Take the vectors of tokens, all but the choice of which on the device: on the host it would take longer than the
    encoder."""
    rest = LoadedMultiVectorHead(replace(head.head, normalize=False), ())

    def take(done: DeviceOutput, batch: PackedBatch) -> _Part:
        transfer = TokenTransfer.start(layers(done.states))
        return _Part(
            multi_vectors=lambda: rest(transfer.rows.wait(), batch),
            is_finite=lambda: transfer.find_finite(batch.cu_seqlens[:-1]),
        )

    return take


def _merge_parts(first: _Part, second: _Part) -> _Part:
    return _Part(
        first.dense or second.dense,
        first.logits or second.logits,
        first.sparse or second.sparse,
        first.multi_vectors or second.multi_vectors,
        first.hidden or second.hidden,
        _combine_checks(first.is_finite, second.is_finite),
    )


def _combine_checks(
    first: PendingResult[BoolArray] | None, second: PendingResult[BoolArray] | None
) -> PendingResult[BoolArray] | None:
    if first is None or second is None:
        return first or second
    return lambda: first() & second()


def to_host_layers(loaded: Sequence[HeadLayerWeights]) -> list[HostLayer]:
    """Return the layers in the form that the device takes."""
    return [
        HostLayer(
            layer.weight,
            layer.bias,
            layer.layer.activation,
            layer.layer.norm,
            layer.norm_weight,
            layer.norm_bias,
            layer.layer.residual,
            layer.residual,
        )
        for layer in loaded
    ]


def _concatenate_rows(parts: Sequence[NDArray[S]]) -> NDArray[S] | None:
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _concatenate_lists(parts: Sequence[list[T]]) -> list[T] | None:
    return list(chain.from_iterable(parts)) if parts else None
