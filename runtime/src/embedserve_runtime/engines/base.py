"""What joins scheduler and engines: a packed batch of token ids in, packed hidden states out.

Free of any engine library, so that the scheduler and the heads can be used without one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from embedserve_runtime.errors import EngineFailure

Int32Array = NDArray[np.int32]
FloatArray = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class TypedTokens:
    """A pair of texts as one sequence: its ids and the token type of each, int32, shape (length,) both."""

    ids: Int32Array
    types: Int32Array

    def __len__(self) -> int:
        return len(self.ids)


# A sequence on its way to a batch; plain ids are all of type 0.
Tokens = Int32Array | TypedTokens


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Sequences end to end, without padding.

    token_ids: int32, shape (tokens,)
    cu_seqlens: int32, shape (sequences + 1,): sequence i is token_ids[cu_seqlens[i]:cu_seqlens[i + 1]]
    token_types: int32, shape (tokens,), or None where all tokens are of type 0
    """

    token_ids: Int32Array
    cu_seqlens: Int32Array
    token_types: Int32Array | None = None

    @classmethod
    def pack(cls, sequences: Sequence[Tokens]) -> PackedBatch:
        """Join non-empty sequences, in the order given."""
        cu_seqlens = np.zeros(len(sequences) + 1, dtype=np.int32)
        np.cumsum([len(sequence) for sequence in sequences], out=cu_seqlens[1:])
        ids = np.concatenate([one.ids if isinstance(one, TypedTokens) else one for one in sequences])
        if not any(isinstance(one, TypedTokens) for one in sequences):
            return cls(ids, cu_seqlens)
        types = np.zeros(len(ids), dtype=np.int32)
        for one, start in zip(sequences, cu_seqlens[:-1], strict=True):
            if isinstance(one, TypedTokens):
                types[start : start + len(one)] = one.types
        return cls(ids, cu_seqlens, types)

    @property
    def lengths(self) -> Int32Array:
        return np.diff(self.cu_seqlens)

    @property
    def tokens(self) -> int:
        return int(self.cu_seqlens[-1])

    def check_types(self, rows: int) -> None:
        """Raises EngineFailure when a token type is not one of the `rows` that the encoder has.

        Without this an engine that lays types and positions out in one table would read another position.
        """
        if self.token_types is None:
            return
        low, high = int(self.token_types.min()), int(self.token_types.max())
        # An encoder without a table of types has nothing to add for type 0.
        if low < 0 or high >= max(rows, 1):
            raise EngineFailure(
                f"a batch of {self.tokens} tokens has token types from {low} to {high}, the encoder {rows}"
            )


class Engine(Protocol):
    """Runs an encoder. `forward` is called from one thread at a time."""

    @property
    def hidden_size(self) -> int: ...

    def forward(self, batch: PackedBatch) -> FloatArray:
        """Final hidden states, float32, shape (tokens, hidden_size), in the order of the batch.

        Raises EngineFailure when the engine library fails.
        """
        ...
