"""Whether the torch engine can run here. Knows torch by name only, so that asking costs no import."""

from __future__ import annotations

from importlib.util import find_spec

from embedserve_runtime.model.architecture import Encoder


def why_not(encoder: Encoder) -> str | None:
    """What keeps this engine from running `encoder` on this machine, or None."""
    del encoder  # every description that a family can give is written for torch
    if find_spec("torch") is None:
        return "torch is not installed (pip install 'embedserve-runtime[torch]')"
    return None
