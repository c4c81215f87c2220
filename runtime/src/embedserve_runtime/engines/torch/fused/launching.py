"""How kernels follow each other on the device."""

from __future__ import annotations

from functools import cache

import torch

# Hopper and later can start a kernel while the one before it ends.
FIRST_WITH_EARLY_STARTS = (9, 0)


@cache
def early(device: torch.device) -> dict[str, bool]:
    """Options of a launch whose programs are set up while the kernel before ends, and wait for its results themselves
    (programmatic dependent launch): the gap between two kernels is a good part of the time of a small batch."""
    if torch.cuda.get_device_capability(device) < FIRST_WITH_EARLY_STARTS:
        return {"EARLY": False}
    return {"EARLY": True, "launch_pdl": True}
