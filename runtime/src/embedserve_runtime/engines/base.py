"""What joins scheduler and engines: a packed batch of token ids in, packed hidden states out.

Free of any engine library, so that the scheduler and the heads can be used without one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Int32Array = NDArray[np.int32]
FloatArray = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Sequences end to end, without padding.

    token_ids: int32, shape (tokens,)
    cu_seqlens: int32, shape (sequences + 1,): sequence i is token_ids[cu_seqlens[i]:cu_seqlens[i + 1]]
    """

    token_ids: Int32Array
    cu_seqlens: Int32Array

    @classmethod
    def pack(cls, sequences: list[Int32Array]) -> PackedBatch:
        """Join non-empty int32 id arrays, in the order given."""
        cu_seqlens = np.zeros(len(sequences) + 1, dtype=np.int32)
        np.cumsum([len(sequence) for sequence in sequences], out=cu_seqlens[1:])
        return cls(token_ids=np.concatenate(sequences), cu_seqlens=cu_seqlens)

    @property
    def lengths(self) -> Int32Array:
        return np.diff(self.cu_seqlens)

    @property
    def tokens(self) -> int:
        return int(self.cu_seqlens[-1])


class Engine(Protocol):
    """Runs an encoder. `forward` is called from one thread at a time."""

    @property
    def hidden_size(self) -> int: ...

    def forward(self, batch: PackedBatch) -> FloatArray:
        """Final hidden states, float32, shape (tokens, hidden_size), in the order of the batch.

        Raises EngineFailure when the engine library fails.
        """
        ...
