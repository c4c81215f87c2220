"""Decides whether the torch engine can run here. Knows torch by name only, so that asking costs no import."""

from __future__ import annotations

from importlib.util import find_spec


def find_obstacle() -> str | None:
    """Find what keeps this engine from running on this machine; None if nothing does."""
    if find_spec("torch") is None:
        return "torch is not installed (pip install 'embedserve-runtime[torch]')"
    return None
