"""The interface of engines: a packed batch of token ids in, packed hidden states out."""

from __future__ import annotations

from typing import Protocol

from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.forward.engine import EngineDescription, MemoryStatus


class EncoderEngine(Protocol):
    """Runs an encoder. `forward` is called from up to `description.concurrency` threads at a time."""

    @property
    def description(self) -> EngineDescription: ...

    @property
    def memory(self) -> MemoryStatus: ...

    @property
    def hidden_size(self) -> int: ...

    @property
    def padding(self) -> int:
        """Positions that the last forward computed besides the real tokens, to give sequences one length."""
        ...

    def forward(self, batch: PackedBatch) -> FloatArray:
        """Final hidden states, float32, shape (tokens, hidden_size), in the order of the batch.

        Raises EngineFailure when the engine library fails.
        """
        ...
