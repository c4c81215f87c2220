"""Models that are a table, of token vectors, of which each sequence gets the mean, or of token weights. No engine
library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedserve_runtime.engines.base import EngineFacts, FloatArray, Int32Array, PackedBatch
from embedserve_runtime.errors import EngineFailure
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.model.static import StaticTable
from embedserve_runtime.model.words import TENSOR, WordTable
from embedserve_runtime.results import Output, Results, SparseVector

Places = NDArray[np.intp]

# The longest sequences of a batch, each summed by itself: what is summed abreast takes a step for each token of the
# longest.
ALONE = 3
# Rows that are fetched at a time: those of 256 float32 numbers fill half of a core's second cache.
ROWS = 1_024


class StaticRunner:
    """A table in memory, in the dtype in which it is stored.

    Products and sums are those of model2vec, bit for bit: rows keep their dtype until they are weighted, are added in
    order, integers and float64 in float64, all others in float32. Ids from `vocabulary` on stand for nothing.
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
        """tensors: as `table.tensors()` gives them. finish: what is made of the means, (sequences, dimensions)."""
        self._card = card
        self._finish = finish
        self._vocabulary = table.vocabulary
        self._unknown = table.unknown
        self._embeddings = tensors["embeddings"]
        self._mapping = tensors.get("mapping")
        self._weights = tensors.get("weights")

    @property
    def card(self) -> ModelCard:
        return self._card

    def run(self, batch: PackedBatch, wanted: Output) -> Results:
        """Dense: the mean of the rows that count, zeros where none does. Hidden: each token's row, zeros for those
        that do not count. Raises EngineFailure for a negative id."""
        if batch.tokens and batch.token_ids.min() < 0:
            raise EngineFailure(f"a batch of {batch.tokens} tokens has a negative token id")
        counts = batch.token_ids < self._vocabulary
        if self._unknown is not None:
            counts &= batch.token_ids != self._unknown
        return Results(
            dense=self._finish(self._means(batch, counts)) if Output.DENSE in wanted else None,
            hidden=self._spread(batch, counts) if Output.HIDDEN in wanted else None,
        )

    def _rows(self, ids: Int32Array) -> NDArray[Any]:
        """Rows of ids of any shape, weighted: that shape, then dimensions."""
        rows = self._embeddings[ids if self._mapping is None else self._mapping[ids]]
        return rows if self._weights is None else rows * self._weights[ids][..., None]

    def _means(self, batch: PackedBatch, counts: NDArray[np.bool_]) -> FloatArray:
        """(sequences, dimensions)."""
        ids = batch.token_ids[counts]
        ends = np.concatenate(([0], np.cumsum(counts)))[batch.cu_seqlens]
        starts, lengths = ends[:-1], np.diff(ends)
        means = np.zeros((len(lengths), self._embeddings.shape[1]), dtype=np.float32)
        # The longest ones first, without those that have no token.
        order = np.argsort(-lengths, kind="stable")[: np.count_nonzero(lengths)]
        for place in order[:ALONE]:
            means[place] = self._wide(ids[starts[place] : ends[place + 1]]).mean(axis=0)
        if len(rest := order[ALONE:]):
            means[rest] = self._means_abreast(ids, starts[rest], lengths[rest])
        return means

    def _means_abreast(self, ids: Int32Array, starts: Places, lengths: Places) -> NDArray[Any]:
        """Of sequences of `lengths`, the longest first: each first row is taken, the second added to it, and so on.

        A sum of many sequences at a time, in the order in which numpy adds the rows of one.
        """
        # Sequences that have a token at each place, and where its tokens begin if all first ones come first.
        present = len(lengths) - np.searchsorted(lengths[::-1], np.arange(lengths[0]), side="right")
        begins = np.concatenate(([0], np.cumsum(present)))
        places = np.repeat(np.arange(len(present)), present)
        ids = ids[starts[np.arange(begins[-1]) - begins[places]] + places]
        fetch = self._fetching(ids, max(ROWS, len(lengths)))
        sums = fetch(0, len(lengths)).copy()
        place = 1
        while place < len(present):
            # As many places as have ROWS rows together, one at least.
            stop = max(place + 1, int(np.searchsorted(begins, begins[place] + ROWS, side="right")) - 1)
            rows = fetch(begins[place], begins[stop])
            for start, count in zip(begins[place:stop] - begins[place], present[place:stop], strict=True):
                sums[:count] += rows[start : start + count]
            place = stop
        sums /= lengths.astype(sums.dtype)[:, None]
        return sums

    def _fetching(self, ids: Int32Array, most: int) -> Callable[[int, int], NDArray[Any]]:
        """What gives the rows of ids[start:stop], at most so many, in the dtype in which they are added. Each call
        writes over what the one before gave: new memory for each, and looking for ids out of bounds, took half of all
        time."""
        table = self._embeddings
        places = ids.astype(np.intp) if self._mapping is None else self._mapping.take(ids)
        weights = None if self._weights is None else self._weights.take(ids)[:, None]
        stored = np.empty((most, table.shape[1]), dtype=table.dtype)
        wide = self._wide(ids[:0]).dtype
        added = stored if weights is None and wide == table.dtype else np.empty(stored.shape, dtype=wide)

        def fetch(start: int, stop: int) -> NDArray[Any]:
            rows = table.take(places[start:stop], axis=0, out=stored[: stop - start], mode="clip")
            made = added[: stop - start]
            if weights is not None:
                np.multiply(rows, weights[start:stop], out=made)
            elif added is not stored:
                made[:] = rows
            return made

        return fetch

    def _wide(self, ids: Int32Array) -> NDArray[Any]:
        """Rows in the dtype in which they are added, an array of their own."""
        rows = self._rows(ids)
        wide = np.float64 if rows.dtype.kind in "iu" or rows.dtype == np.float64 else np.float32
        return rows.astype(wide, copy=False)

    def _spread(self, batch: PackedBatch, counts: NDArray[np.bool_]) -> list[FloatArray]:
        hidden = np.zeros((batch.tokens, self._embeddings.shape[1]), dtype=np.float32)
        hidden[counts] = self._rows(batch.token_ids[counts])
        return np.split(hidden, batch.cu_seqlens[1:-1])


class WordRunner:
    """Each token of a text has the weight of a table, however often it occurs.

    Source: SparseStaticEmbedding of sentence-transformers 6.2.
    """

    engine = EngineFacts("static", "cpu", "float32")
    out_of_memory = 0
    recomputed = 0

    def __init__(self, card: ModelCard, table: WordTable) -> None:
        self._card = card
        self._weights = table.tensors()[TENSOR]

    @property
    def card(self) -> ModelCard:
        return self._card

    def run(self, batch: PackedBatch, wanted: Output) -> Results:
        """Raises EngineFailure for an id that the table does not have."""
        if batch.tokens and not 0 <= batch.token_ids.min() <= batch.token_ids.max() < len(self._weights):
            raise EngineFailure(
                f"a batch of {batch.tokens} tokens has ids outside of the table of {len(self._weights)}"
            )
        if Output.SPARSE not in wanted:
            return Results()
        return Results(
            sparse=[self._vector(ids) for ids in np.split(batch.token_ids, batch.cu_seqlens[1:-1])]
        )

    def _vector(self, ids: Int32Array) -> SparseVector:
        present = np.unique(ids).astype(np.int32)
        kept = present[~(self._weights[present] <= 0)]
        return SparseVector(kept, self._weights[kept])
