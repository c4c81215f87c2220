"""A packed batch on the device, with the index arrays that padded attention needs where there is no packed one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.grouping import group


@dataclass(frozen=True, slots=True, eq=False)
class PaddedGroup:
    """Sequences of similar length, side by side.

    rows: int64 (sequences * length,), the packed token of each padded position.
    padding: bool (sequences, 1, 1, length), True where no real key is; None when all have the full length.
    """

    rows: Tensor
    sequences: int
    length: int
    padding: Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class PaddedGroups:
    """The groups of a batch, each padded to one length.

    unpad: int64 (tokens,), for each packed token its padded position.
    """

    members: tuple[PaddedGroup, ...]
    unpad: Tensor

    @property
    def positions(self) -> int:
        """The positions of all groups, padded ones included."""
        return sum(group.sequences * group.length for group in self.members)


@dataclass(frozen=True, slots=True, eq=False)
class PackedTokens:
    """The batch on the device. groups: None when every layer has packed attention."""

    ids: Tensor  # int64 (tokens,)
    positions: Tensor  # int64 (tokens,), within each sequence
    cu_seqlens: Tensor  # int32 (sequences + 1,)
    max_seqlen: int
    groups: PaddedGroups | None
    types: Tensor | None  # int64 (tokens,); None where all are of type 0

    @classmethod
    def copy_to_device(
        cls, batch: PackedBatch, device: torch.device, group_width: int | None
    ) -> PackedTokens:
        """Bring `batch` to the device. group_width: heads x head size of the padded attention, None without one."""
        positions = np.arange(batch.tokens, dtype=np.int64) - np.repeat(batch.cu_seqlens[:-1], batch.lengths)
        return cls(
            ids=_copy_to(device, batch.token_ids.astype(np.int64)),
            positions=_copy_to(device, positions),
            cu_seqlens=_copy_to(device, batch.cu_seqlens.astype(np.int32)),
            max_seqlen=int(batch.lengths.max()),
            groups=None if group_width is None else _build_groups(batch, device, group_width),
            types=None if batch.token_types is None else _copy_to(device, batch.token_types.astype(np.int64)),
        )


def _build_groups(batch: PackedBatch, device: torch.device, width: int) -> PaddedGroups:
    indices = group(batch, width)
    rows = _copy_to(device, indices.rows)
    members = []
    for number, (sequences, length) in enumerate(indices.shapes.tolist()):
        lengths = indices.lengths[indices.length_starts[number] : indices.length_starts[number + 1]]
        padding = None
        if (lengths < length).any():
            padding = _copy_to(device, np.arange(length) >= lengths[:, None])[:, None, None, :]
        group_rows = rows[indices.row_starts[number] : indices.row_starts[number + 1]]
        members.append(PaddedGroup(group_rows, sequences, length, padding))
    return PaddedGroups(tuple(members), _copy_to(device, indices.unpad))


def _copy_to(device: torch.device, values: NDArray[np.generic]) -> Tensor:
    return torch.from_numpy(values).to(device, non_blocking=True)
