"""Models that are a table, of token vectors, of which each sequence gets the mean, or of token weights. No engine
library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedserve_runtime.engines.base import EngineFacts, FloatArray, Int32Array, PackedBatch
from embedserve_runtime.engines.results import Output, Results, SparseVector
from embedserve_runtime.errors import EngineFailure, ModelInvalid
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.static import StaticTable

# Dtypes of tables that the loop reads as they are stored.
STORED = ("float32", "float64", "int8", "float16")


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """A table as the loop reads it; of all arrays it has been made sure that nobody writes them.

    table: (rows, dimensions), float16 as its bits. mapping: int64, the row of each token, empty where it is the token.
    weights: the factor of each token, in the dtype in which rows are added, empty where there is none.
    """

    table: NDArray[Any]
    mapping: NDArray[np.int64]
    weights: NDArray[Any]

    @classmethod
    def build(cls, tensors: Mapping[str, NDArray[Any]]) -> Rows:
        """tensors: as `table_tensors` of `model.static` gives them.

        Products keep the dtype that numpy gives them; integers and float64 are added in float64, all others in float32.
        Raises ModelInvalid for dtypes that have no product.
        """
        table, mapping, weights = tensors["embeddings"], tensors.get("mapping"), tensors.get("weights")
        product = table.dtype if weights is None else _find_product_dtype(table.dtype, weights.dtype)
        added = np.dtype(np.float64 if product.kind in "iu" or product == np.float64 else np.float32)
        if table.dtype.name not in STORED or (weights is not None and product != added):
            table = table if mapping is None else table[mapping]
            table = (table if weights is None else table * weights[:, None]).astype(added)
            mapping = weights = None
        return cls(
            _copy_read_only(table.view(np.uint16) if table.dtype == np.float16 else table),
            _copy_read_only(
                np.zeros(0, dtype=np.int64) if mapping is None else mapping.astype(np.int64, copy=False)
            ),
            _copy_read_only(
                np.zeros(0, dtype=added) if weights is None else weights.astype(added, copy=False)
            ),
        )

    def look_up(self, ids: Int32Array) -> FloatArray:
        """A row for each, weighted: (tokens, dimensions)."""
        table = self.table.view(np.float16) if self.table.dtype == np.uint16 else self.table
        rows = table[self.mapping[ids] if len(self.mapping) else ids]
        if len(self.weights):
            rows = rows.astype(self.weights.dtype) * self.weights[ids][:, None]
        return rows.astype(np.float32)


def _find_product_dtype(table: np.dtype[Any], weights: np.dtype[Any]) -> np.dtype[Any]:
    try:
        return np.result_type(table, weights)
    except TypeError as error:
        raise ModelInvalid(
            f"a table of {table} with weights of {weights}: no dtype holds both; store the weights as float32"
        ) from error


def _copy_read_only(array: NDArray[Any]) -> NDArray[Any]:
    """A copy, since numpy has large arrays lie in large pages, which rows at random places are found in faster."""
    fixed = np.array(array, order="C")
    fixed.flags.writeable = False
    return fixed


class StaticRunner:
    """A table in memory, in the dtype in which it is stored.

    Products and sums are those of model2vec, bit for bit. Ids from `vocabulary` on stand for nothing.
    """

    engine = EngineFacts("static", "cpu", "as stored")
    out_of_memory = 0
    recomputed = 0

    def __init__(
        self,
        card: ModelCard,
        table: StaticTable,
        tensors: Mapping[str, NDArray[Any]],
        finish: Callable[[FloatArray], FloatArray],
    ) -> None:
        """tensors: as `read_table_tensors` of `model.static` gives them. finish: what is made of the means, (sequences,
        dimensions)."""
        # Imported here: numba is for static models only.
        from embedserve_runtime.loops.mean_pooling import means

        self._means = means
        self._card = card
        self._finish = finish
        self._vocabulary = table.vocabulary
        self._unknown = -1 if table.unknown is None else table.unknown
        self._rows = Rows.build(tensors)

    @property
    def card(self) -> ModelCard:
        return self._card

    def run(self, batch: PackedBatch, wanted: Output) -> Results:
        """Dense: the mean of the rows that count, zeros where none does. Hidden: each token's row, zeros for those
        that do not count. Raises EngineFailure for a negative id."""
        means = np.empty((len(batch.cu_seqlens) - 1, self._rows.table.shape[1]), dtype=np.float32)
        wrong = self._means(
            batch.token_ids,
            batch.cu_seqlens,
            self._rows.table,
            self._rows.mapping,
            self._rows.weights,
            self._vocabulary,
            self._unknown,
            means,
        )
        if wrong >= 0:
            raise EngineFailure(f"a batch of {batch.tokens} tokens has a negative token id at {wrong}")
        return Results(
            dense=self._finish(means) if Output.DENSE in wanted else None,
            hidden=self._list_token_states(batch) if Output.HIDDEN in wanted else None,
        )

    def _list_token_states(self, batch: PackedBatch) -> list[FloatArray]:
        counts = (batch.token_ids < self._vocabulary) & (batch.token_ids != self._unknown)
        hidden = np.zeros((batch.tokens, self._rows.table.shape[1]), dtype=np.float32)
        hidden[counts] = self._rows.look_up(batch.token_ids[counts])
        return np.split(hidden, batch.cu_seqlens[1:-1])


class WordRunner:
    """Each token of a text has the weight of a table, however often it occurs.

    Source: SparseStaticEmbedding of sentence-transformers 6.2.
    """

    engine = EngineFacts("static", "cpu", "float32")
    out_of_memory = 0
    recomputed = 0

    def __init__(self, card: ModelCard, weights: FloatArray) -> None:
        """weights: of each token, (vocabulary,)."""
        self._card = card
        self._weights = weights

    @property
    def card(self) -> ModelCard:
        return self._card

    def run(self, batch: PackedBatch, wanted: Output) -> Results:
        """Sum up the vectors of each text. Raises EngineFailure for an id that the table does not have."""
        if batch.tokens and not 0 <= batch.token_ids.min() <= batch.token_ids.max() < len(self._weights):
            raise EngineFailure(
                f"a batch of {batch.tokens} tokens has ids outside of the table of {len(self._weights)}"
            )
        if Output.SPARSE not in wanted:
            return Results()
        return Results(
            sparse=[self._build_vector(ids) for ids in np.split(batch.token_ids, batch.cu_seqlens[1:-1])]
        )

    def _build_vector(self, ids: Int32Array) -> SparseVector:
        present = np.unique(ids).astype(np.int32)
        kept = present[~(self._weights[present] <= 0)]
        return SparseVector(kept, self._weights[kept])
