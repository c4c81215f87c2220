"""Results on their way from the device: copied without waiting, read once they have arrived."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from embedserve_runtime.engines.base import FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Landing:
    """A copy under way into pinned memory."""

    pinned: Tensor
    arrived: torch.cuda.Event

    @classmethod
    def of(cls, values: Tensor) -> Landing:
        """Queue the copy behind the work that makes `values`, which may be overwritten by what is queued later."""
        pinned = torch.empty(values.shape, dtype=torch.float32, pin_memory=True)
        pinned.copy_(values.float(), non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
        return cls(pinned, arrived)

    def array(self) -> FloatArray:
        """Waits. A copy, so that the pinned block goes back to its pool."""
        self.arrived.synchronize()
        return np.array(self.pinned.numpy(), dtype=np.float32)
