"""Results on their way from the device: copied without waiting, read once they have arrived."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from embedserve_runtime.engines.base import BoolArray, FloatArray, Int32Array

# Elements from which on a copy takes longer than the changes of streams: pooled rows of a batch have fewer, hidden
# states of most batches more.
LARGE = 1_048_576


class Arriving(Protocol):
    """Values on their way to the host."""

    def array(self) -> FloatArray:
        """Waits for them."""
        ...


@cache
def _aside(device: torch.device) -> torch.cuda.Stream:
    """Of the results of a device."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True, eq=False)
class Landing:
    """A copy under way into pinned memory."""

    pinned: Tensor
    arrived: torch.cuda.Event

    @classmethod
    def of(cls, values: Tensor) -> Landing:
        """Queue the copy behind the work that makes `values`, which may be overwritten by what is queued later.

        A large one goes on a stream of its own, so that the next batch does not wait for it.
        """
        pinned = torch.empty(values.shape, dtype=torch.float32, pin_memory=True)
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        if values.numel() < LARGE:
            pinned.copy_(values.float(), non_blocking=True)
            arrived.record()
            return cls(pinned, arrived)
        made = values.to(torch.float32, copy=True)
        aside = _aside(values.device)
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            pinned.copy_(made, non_blocking=True)
            arrived.record()
        # Its memory is used again only when the copy is over.
        made.record_stream(aside)
        return cls(pinned, arrived)

    def array(self) -> FloatArray:
        """Waits. Small values are copied, so that their pinned block goes back to its pool; large ones stay in it until
        nobody has a view of them: to copy them takes longer than to compute them."""
        self.arrived.synchronize()
        values: FloatArray = self.pinned.numpy()
        return values if values.size >= LARGE else values.copy()


@dataclass(frozen=True, slots=True, eq=False)
class TokenLanding:
    """A row for each token, and whether all its numbers are finite, which the device sees faster than the host."""

    rows: Landing
    finite: Landing

    @classmethod
    def of(cls, rows: Tensor) -> TokenLanding:
        """rows: (tokens, size)."""
        return cls(Landing.of(rows), Landing.of(rows.isfinite().all(dim=1)))

    def sound(self, starts: Int32Array) -> BoolArray:
        """(sequences,), whether all tokens of each are finite. starts: of the sequences, none of which is empty."""
        sound: BoolArray = np.minimum.reduceat(self.finite.array(), starts) > 0
        return sound


@dataclass(frozen=True, slots=True, eq=False)
class SparseLanding:
    """The entries of rows that are not 0, gathered on the device. counts: of each row."""

    indices: Tensor
    values: Landing
    counts: Tensor

    @classmethod
    def of(cls, rows: Tensor) -> SparseLanding:
        """rows: (sequences, vocabulary). Waits for them, since how many entries there are decides what is copied."""
        # Not a comparison with > 0: what is not a number is kept, for others to see.
        kept = ~(rows <= 0)
        indices = kept.nonzero()[:, 1].to(torch.int32)
        return cls(indices.cpu(), Landing.of(rows[kept]), kept.sum(dim=1).cpu())

    def rows(self) -> list[tuple[Int32Array, FloatArray]]:
        """Indices, ascending, and values of each row."""
        cuts = np.cumsum(self.counts.numpy())[:-1]
        return list(
            zip(np.split(self.indices.numpy(), cuts), np.split(self.values.array(), cuts), strict=True)
        )
