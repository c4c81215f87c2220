"""Describes a packed batch on a CUDA device: all its integers are copied asynchronously at once from pinned memory.

A batch may be laid out for more tokens and sequences than it has (the capacity of a CUDA graph); what is left over
is made of sequences of one token of id 0, which cost a little work and disturb nobody.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from embedserve_runtime.forward.batch import PackedBatch

# Integers in 16 bytes.
ALIGNED = 4


@dataclass(frozen=True, slots=True)
class Capacity:
    """The numbers of tokens and sequences that a layout has room for."""

    tokens: int
    sequences: int

    @property
    def steps(self) -> tuple[int, int]:
        """The elements that a part by token and one by sequence take: each begins on 16 bytes, since a kernel is
        compiled once more for every set of its arrays that does not."""
        return (-(-self.tokens // ALIGNED) * ALIGNED, -(-self.sequences // ALIGNED) * ALIGNED)

    @property
    def integers(self) -> int:
        """Length of the array that holds a batch."""
        by_token, by_sequence = self.steps
        return 5 * by_token + 3 * by_sequence


@dataclass(frozen=True, slots=True, eq=False)
class DeviceBatch:
    """Views of one int32 array. All sizes are those of the layout, so they may exceed the batch's own.

    ids, types: of each token. starts, ends: bounds of each token's sequence; sequence_of: its number.
    firsts, lasts: of each sequence, the bounds of what is pooled; origins: its first token.
    bounds: int32 (sequences + 1,), where sequences begin and the last one ends, and max_seqlen: of the sequences; of a
    batch whose layout has nothing left over and whose attention takes them, else None and 0.
    """

    ids: Tensor
    types: Tensor
    starts: Tensor
    ends: Tensor
    sequence_of: Tensor
    firsts: Tensor
    lasts: Tensor
    origins: Tensor
    bounds: Tensor | None = None
    max_seqlen: int = 0

    @classmethod
    def view_storage(cls, storage: Tensor, capacity: Capacity) -> DeviceBatch:
        """View an int32 array of `capacity.integers` elements as a batch."""
        by_token, by_sequence = capacity.steps
        tokens = storage[: 5 * by_token].view(5, by_token)
        sequences = storage[5 * by_token : capacity.integers].view(3, by_sequence)
        return cls(*tokens[:, : capacity.tokens], *sequences[:, : capacity.sequences])

    @property
    def tokens(self) -> int:
        return len(self.ids)

    @property
    def sequences(self) -> int:
        return len(self.firsts)

    def with_bounds(self, max_seqlen: int) -> DeviceBatch:
        """Add the bounds. max_seqlen: the length of the longest sequence, which the host knows."""
        return replace(self, bounds=torch.cat([self.origins, self.ends[-1:]]), max_seqlen=max_seqlen)

    def trim(self, tokens: int, sequences: int) -> DeviceBatch:
        """Return views of the batch's own tokens and sequences, without the unused rest of the layout."""
        return DeviceBatch(
            ids=self.ids[:tokens],
            types=self.types[:tokens],
            starts=self.starts[:tokens],
            ends=self.ends[:tokens],
            sequence_of=self.sequence_of[:tokens],
            firsts=self.firsts[:sequences],
            lasts=self.lasts[:sequences],
            origins=self.origins[:sequences],
        )


def lay_out(batch: PackedBatch, capacity: Capacity, into: NDArray[np.int32]) -> None:
    """Write `batch` into an array of `capacity.integers` elements, in the order of `DeviceBatch`."""
    room, tokens, sequences = capacity.tokens, batch.tokens, len(batch.cu_seqlens) - 1
    step, step_of_sequences = capacity.steps
    by_token = into[: 5 * step].reshape(5, step)[:, :room]
    by_sequence = into[5 * step : capacity.integers].reshape(3, step_of_sequences)
    ids, types, starts, ends, sequence_of = by_token
    firsts, lasts, origins = by_sequence[:, : capacity.sequences]
    ids[:tokens] = batch.token_ids
    types[:tokens] = 0 if batch.token_types is None else batch.token_types
    if sequences == 1:
        # The same as below, in a third of the time: one short text waits for this.
        starts[:tokens], ends[:tokens], sequence_of[:tokens] = 0, tokens, 0
    else:
        bounds, lengths = batch.cu_seqlens, batch.lengths
        starts[:tokens] = bounds[:-1].repeat(lengths)
        ends[:tokens] = bounds[1:].repeat(lengths)
        sequence_of[:tokens] = np.arange(sequences, dtype=np.int32).repeat(lengths)
    if tokens < room:
        by_token[:, tokens:] = 0
        starts[tokens:] = np.arange(tokens, room, dtype=np.int32)
        ends[tokens:] = np.arange(tokens + 1, room + 1, dtype=np.int32)
    lasts[:sequences], origins[:sequences] = batch.cu_seqlens[1:], batch.cu_seqlens[:-1]
    firsts[:sequences] = batch.cu_seqlens[:-1]
    if batch.pool_starts is not None:
        # The last token always stays.
        firsts[:sequences] += np.minimum(batch.pool_starts, batch.lengths - 1)
    if sequences < capacity.sequences:
        # Rows that nobody reads: nothing is pooled into them.
        firsts[sequences:], lasts[sequences:], origins[sequences:] = 0, 0, 0


def copy_in(batch: PackedBatch, capacity: Capacity, storage: Tensor) -> None:
    """Bring `batch` into `storage`, an int32 array on a CUDA device, without waiting."""
    # Pinned blocks come from torch's own pool, which reuses them only after their copies are over.
    staged = torch.empty(capacity.integers, dtype=torch.int32, pin_memory=storage.is_cuda)
    lay_out(batch, capacity, staged.numpy())
    storage[: capacity.integers].copy_(staged, non_blocking=True)


def copy_to_device(batch: PackedBatch, device: torch.device) -> DeviceBatch:
    """Copy a batch into an array of its own size on the device."""
    capacity = Capacity(batch.tokens, len(batch.lengths))
    storage = torch.empty(capacity.integers, dtype=torch.int32, device=device)
    copy_in(batch, capacity, storage)
    return DeviceBatch.view_storage(storage, capacity)
