"""Transfers of results from the device to the host: they start without waiting and are read once they have ended."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from embedserve_runtime.forward.arrays import BoolArray, FloatArray, Int32Array

# Elements from which on a copy takes longer than the changes of streams: pooled rows of a batch have fewer, hidden
# states of most batches more.
LARGE = 1_048_576


class PendingArray(Protocol):
    """An array that is being copied to the host."""

    def wait(self) -> FloatArray:
        """Wait for the copy and return the array."""
        ...


@cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream that copies large results of a device."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True, eq=False)
class HostTransfer:
    """A copy from the device into pinned memory."""

    host: Tensor
    completed: torch.cuda.Event

    @classmethod
    def start(cls, values: Tensor) -> HostTransfer:
        """Queue the copy after the work that makes `values`, which may be overwritten by what is queued later.

        A large one goes on a stream of its own, so that the next batch does not wait for it.
        """
        host = torch.empty(values.shape, dtype=torch.float32, pin_memory=True)
        completed = torch.cuda.Event()  # type: ignore[no-untyped-call]
        if values.numel() < LARGE:
            host.copy_(values.float(), non_blocking=True)
            completed.record()
            return cls(host, completed)
        converted = values.to(torch.float32, copy=True)
        stream = _copy_stream(values.device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            host.copy_(converted, non_blocking=True)
            completed.record()
        # Its memory is used again only when the copy is over.
        converted.record_stream(stream)
        return cls(host, completed)

    def wait(self) -> FloatArray:
        """Wait for the copy. Small values are copied, so that their pinned block goes back to its pool; large ones stay
        in it until nobody has a view of them: to copy them takes longer than to compute them."""
        self.completed.synchronize()
        values: FloatArray = self.host.numpy()
        return values if values.size >= LARGE else values.copy()


@dataclass(frozen=True, slots=True, eq=False)
class TokenTransfer:
    """A row for each token, and whether all its numbers are finite, which the device sees faster than the host."""

    rows: HostTransfer
    finite: HostTransfer

    @classmethod
    def start(cls, rows: Tensor) -> TokenTransfer:
        """Start the copy of rows (tokens, size)."""
        return cls(HostTransfer.start(rows), HostTransfer.start(rows.isfinite().all(dim=1)))

    def find_finite(self, starts: Int32Array) -> BoolArray:
        """Return whether all tokens of each sequence are finite, (sequences,). starts: of the sequences, none of which
        is empty."""
        is_finite: BoolArray = np.minimum.reduceat(self.finite.wait(), starts) > 0
        return is_finite


@dataclass(frozen=True, slots=True, eq=False)
class SparseTransfer:
    """The entries of rows that are not 0, gathered on the device. counts: of each row."""

    indices: Tensor
    values: HostTransfer
    counts: Tensor

    @classmethod
    def start(cls, rows: Tensor) -> SparseTransfer:
        """Start the copy of rows (sequences, vocabulary). Waits for the rows, since how many entries there are decides
        what is copied."""
        # Not a comparison with > 0: what is not a number is kept, for others to see.
        is_positive = ~(rows <= 0)
        indices = is_positive.nonzero()[:, 1].to(torch.int32)
        return cls(indices.cpu(), HostTransfer.start(rows[is_positive]), is_positive.sum(dim=1).cpu())

    def wait_rows(self) -> list[tuple[Int32Array, FloatArray]]:
        """Return the indices, ascending, and the values of each row."""
        cuts = np.cumsum(self.counts.numpy())[:-1]
        return list(
            zip(np.split(self.indices.numpy(), cuts), np.split(self.values.wait(), cuts), strict=True)
        )
