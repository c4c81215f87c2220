"""A CUDA graph that also brings its batch in and takes its rows out: for one short text the host's part, a dozen calls
around two copies, takes as long as a good part of the forward pass.

Its pinned blocks are its own, so it has one batch at a time, from its submission until its rows are read; another one
takes the ordinary path.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from embedserve_runtime.engines.base import FloatArray, PackedBatch
from embedserve_runtime.engines.torch.device_batch import Capacity, lay_out


class DirectGraph:
    """Captured by whoever makes it, on the stream on which it is replayed."""

    def __init__(
        self,
        capacity: Capacity,
        storage: Tensor,
        forward: Callable[[], Tensor],
        capture: Callable[[Callable[[], None]], torch.cuda.CUDAGraph],
        columns: int,
    ) -> None:
        """forward: reads the batch from `storage` and gives float32 rows (sequences, columns)."""
        self._capacity = capacity
        self._staged = torch.zeros(capacity.integers, dtype=torch.int32, pin_memory=True)
        self._into = self._staged.numpy()
        rows = torch.empty((capacity.sequences, columns), dtype=torch.float32, pin_memory=True)
        self._rows: FloatArray = rows.numpy()
        self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._busy = False

        def run_and_copy() -> None:
            storage[: capacity.integers].copy_(self._staged, non_blocking=True)
            rows.copy_(forward(), non_blocking=True)

        self._graph = capture(run_and_copy)
        # The graph writes into it.
        self._kept = rows

    def submit(self, batch: PackedBatch) -> DirectRows | None:
        """Queue the batch; None while an earlier one's rows have not been read."""
        if self._busy:
            return None
        self._busy = True
        lay_out(batch, self._capacity, self._into)
        self._graph.replay()
        self._arrived.record()
        return DirectRows(self, len(batch.cu_seqlens) - 1)

    def take(self, sequences: int) -> FloatArray:
        """Wait for the rows, and have room for the next batch."""
        self._arrived.synchronize()
        rows = np.array(self._rows[:sequences])
        self._busy = False
        return rows


@dataclass(slots=True, eq=False)
class DirectRows:
    """Rows that are being copied to the host."""

    graph: DirectGraph
    sequences: int
    _taken: FloatArray | None = None

    def wait(self) -> FloatArray:
        """Wait for the rows and return them."""
        if self._taken is None:
            self._taken = self.graph.take(self.sequences)
        return self._taken
