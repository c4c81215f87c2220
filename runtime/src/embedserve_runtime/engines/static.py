"""Models that are a table, of token vectors, of which each sequence gets the mean, or of token weights. No engine
library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedserve_runtime.errors import EngineFailure, ModelInvalid
from embedserve_runtime.forward.arrays import BoolArray, FloatArray, Int32Array
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.engine import EngineDescription, MemoryStatus
from embedserve_runtime.forward.outputs import ModelOutput, OutputKind, SparseVector
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.static import StaticTable


@dataclass(frozen=True, slots=True, eq=False)
class EmbeddingTable:
    """A table of token vectors as it is stored. All of its arrays are read-only.

    table: (rows, dimensions). mapping: the row of each token, None where it is the token. weights: the factor of each
    token, None where there is none. added: the dtype in which rows are added.
    """

    table: NDArray[Any]
    mapping: NDArray[np.intp] | None
    weights: NDArray[Any] | None
    added: np.dtype[Any]

    @classmethod
    def build(cls, tensors: Mapping[str, NDArray[Any]]) -> EmbeddingTable:
        """Build a table. tensors: by the names that `model.static.read_table_tensors` gives them.

        Products keep the dtype that numpy gives them; integers and float64 are added in float64, all others in float32.
        Raises ModelInvalid for dtypes that have no product.
        """
        table, mapping, weights = tensors["embeddings"], tensors.get("mapping"), tensors.get("weights")
        product = table.dtype if weights is None else _find_product_dtype(table.dtype, weights.dtype)
        return cls(
            _copy_read_only(table),
            None if mapping is None else _copy_read_only(mapping.astype(np.intp, copy=False)),
            None if weights is None else _copy_read_only(weights),
            np.dtype(np.float64 if product.kind in "iu" or product == np.float64 else np.float32),
        )

    def look_up(self, ids: Int32Array) -> FloatArray:
        """Return the weighted row of each id: float32, (tokens, dimensions)."""
        return self._read(*self._locate(ids)).astype(np.float32, copy=False)

    def compute_means(self, ids: Int32Array, bounds: NDArray[np.integer]) -> FloatArray:
        """Average the weighted rows of each text, which are added in the order of its ids as numpy's `mean` does it:
        float32, (texts, dimensions), zeros for a text without ids.

        bounds: (texts + 1,), text i is ids[bounds[i]:bounds[i + 1]].
        """
        row_indices, factors = self._locate(ids)
        sums = np.zeros((len(bounds) - 1, self.table.shape[1]), dtype=self.added)
        # One text after another: its rows stay in the processor's cache, as those of a batch would not. Rows that are
        # not finite give means that are not, without a warning.
        with np.errstate(over="ignore", invalid="ignore"):
            for total, (start, stop) in zip(sums, pairwise(bounds.tolist()), strict=True):
                if start < stop:
                    rows = self._read(
                        row_indices[start:stop], None if factors is None else factors[start:stop]
                    )
                    np.add.reduce(rows, axis=0, out=total)
        counts = np.maximum(np.diff(bounds), 1).astype(self.added)
        means: FloatArray = (sums / counts[:, None]).astype(np.float32, copy=False)
        return means

    def _locate(self, ids: Int32Array) -> tuple[NDArray[np.intp], NDArray[Any] | None]:
        """Return the row of each id, and its factor: (tokens, 1), None where there is none."""
        row_indices = ids.astype(np.intp) if self.mapping is None else self.mapping.take(ids)
        return row_indices, None if self.weights is None else self.weights.take(ids)[:, None]

    def _read(self, row_indices: NDArray[np.intp], factors: NDArray[Any] | None) -> NDArray[Any]:
        """Return weighted rows in the dtype in which they are added."""
        rows = self.table.take(row_indices, axis=0)
        return (rows if factors is None else rows * factors).astype(self.added, copy=False)


def _find_product_dtype(table: np.dtype[Any], weights: np.dtype[Any]) -> np.dtype[Any]:
    try:
        return np.result_type(table, weights)
    except TypeError as error:
        raise ModelInvalid(
            f"a table of {table} with weights of {weights}: no dtype holds both; store the weights as float32"
        ) from error


def _copy_read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Return a read-only copy: numpy has large arrays lie in large pages, where random rows are found faster."""
    fixed = np.array(array, order="C")
    fixed.flags.writeable = False
    return fixed


class StaticRunner:
    """Runs a static model: a table in memory, in the dtype in which it is stored.

    Products and sums are those of model2vec, bit for bit. Ids outside the vocabulary are ignored.

    tensors: as `read_table_tensors` of `model.static` gives them. finish: what is made of the means, (sequences,
    dimensions).
    """

    engine = EngineDescription("static", "cpu", "as stored")
    memory = MemoryStatus()
    recomputed = 0

    def __init__(
        self,
        card: ModelCard,
        table: StaticTable,
        tensors: Mapping[str, NDArray[Any]],
        finish: Callable[[FloatArray], FloatArray],
    ) -> None:
        self._card = card
        self._finish = finish
        self._vocabulary = table.vocabulary
        self._unknown = -1 if table.unknown is None else table.unknown
        self._embeddings = EmbeddingTable.build(tensors)

    @property
    def card(self) -> ModelCard:
        return self._card

    def run(self, batch: PackedBatch, outputs: OutputKind) -> ModelOutput:
        """Return the mean of each text's rows, or zeros for a text without known tokens.

        Hidden states are the row of each token, zeros for unknown ones. Ids outside the vocabulary are ignored. Raises
        EngineFailure for a negative id.
        """
        ids = batch.token_ids
        if len(ids) and ids.min() < 0:
            wrong = int(np.argmax(ids < 0))
            raise EngineFailure(f"a batch of {batch.tokens} tokens has a negative token id at {wrong}")
        is_known = (ids < self._vocabulary) & (ids != self._unknown)
        bounds = np.concatenate(([0], np.cumsum(is_known)))[batch.cu_seqlens]
        means = self._embeddings.compute_means(ids[is_known], bounds)
        return ModelOutput(
            dense=self._finish(means) if OutputKind.DENSE in outputs else None,
            hidden=self._build_token_states(batch, is_known) if OutputKind.HIDDEN in outputs else None,
        )

    def _build_token_states(self, batch: PackedBatch, is_known: BoolArray) -> list[FloatArray]:
        """Return the rows of each text's tokens, (tokens, dimensions). is_known: (tokens,) of the batch."""
        hidden = np.zeros((batch.tokens, self._embeddings.table.shape[1]), dtype=np.float32)
        hidden[is_known] = self._embeddings.look_up(batch.token_ids[is_known])
        return np.split(hidden, batch.cu_seqlens[1:-1])


class SparseStaticRunner:
    """Each token of a text has the weight of a table, however often it occurs.

    Source: SparseStaticEmbedding of sentence-transformers 6.2.

    weights: the weight of each token, (vocabulary,).
    """

    engine = EngineDescription("static", "cpu", "float32")
    memory = MemoryStatus()
    recomputed = 0

    def __init__(self, card: ModelCard, weights: FloatArray) -> None:
        self._card = card
        self._weights = weights

    @property
    def card(self) -> ModelCard:
        return self._card

    def run(self, batch: PackedBatch, outputs: OutputKind) -> ModelOutput:
        """Return the weights of the distinct tokens of each text. Raises EngineFailure for an id that the table does
        not have."""
        if batch.tokens and not 0 <= batch.token_ids.min() <= batch.token_ids.max() < len(self._weights):
            raise EngineFailure(
                f"a batch of {batch.tokens} tokens has ids outside of the table of {len(self._weights)}"
            )
        if OutputKind.SPARSE not in outputs:
            return ModelOutput()
        return ModelOutput(
            sparse=[self._build_vector(ids) for ids in np.split(batch.token_ids, batch.cu_seqlens[1:-1])]
        )

    def _build_vector(self, ids: Int32Array) -> SparseVector:
        present = np.unique(ids).astype(np.int32)
        # A weight that is no number is kept, so that the answer is refused instead of lacking a token.
        weighted = present[~(self._weights[present] <= 0)]
        return SparseVector(weighted, self._weights[weighted])
