"""A CUDA graph that also brings its batch in and takes its results out: for one short text the host's part, a dozen
calls around two copies, takes as long as a good part of the forward pass.

Its pinned blocks are its own, so it has one batch at a time, from its submission until its results are read; another
one takes the ordinary path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from embedserve_runtime.engines.torch.device_batch import Capacity, lay_out
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch


class DirectGraph:
    """Captured by whoever makes it, on the stream on which it is replayed.

    forward: reads the batch from `storage` and gives its results, float32, of these shapes.
    """

    def __init__(
        self,
        capacity: Capacity,
        storage: Tensor,
        forward: Callable[[], Sequence[Tensor]],
        capture: Callable[[Callable[[], None]], torch.cuda.CUDAGraph],
        shapes: Sequence[tuple[int, ...]],
    ) -> None:
        self._capacity = capacity
        self._staged = torch.zeros(capacity.integers, dtype=torch.int32, pin_memory=True)
        self._into = self._staged.numpy()
        # The graph writes into them.
        self._results = [torch.empty(shape, dtype=torch.float32, pin_memory=True) for shape in shapes]
        self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._busy = False

        def run_and_copy() -> None:
            storage[: capacity.integers].copy_(self._staged, non_blocking=True)
            for host, result in zip(self._results, forward(), strict=True):
                host.copy_(result, non_blocking=True)

        self._graph = capture(run_and_copy)

    def submit(self, batch: PackedBatch) -> DirectResults | None:
        """Queue the batch; None while an earlier one's results have not been read."""
        if self._busy:
            return None
        self._busy = True
        lay_out(batch, self._capacity, self._into)
        self._graph.replay()
        self._arrived.record()
        return DirectResults(self)

    def take(self) -> list[FloatArray]:
        """Wait for the results, and have room for the next batch."""
        self._arrived.synchronize()
        results = [np.array(host.numpy()) for host in self._results]
        self._busy = False
        return results


@dataclass(slots=True, eq=False)
class DirectResults:
    """Results that are being copied to the host, all of them taken when the first is read."""

    graph: DirectGraph
    _arrays: list[FloatArray] | None = None

    def wait_for(self, number: int) -> FloatArray:
        """Wait for the results and return one of them."""
        if self._arrays is None:
            self._arrays = self.graph.take()
        return self._arrays[number]


@dataclass(frozen=True, slots=True, eq=False)
class DirectRows:
    """The first `count` rows of one of the results, by its number."""

    results: DirectResults
    number: int
    count: int

    def wait(self) -> FloatArray:
        """Wait for the rows and return them."""
        return self.results.wait_for(self.number)[: self.count]
