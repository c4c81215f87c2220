"""The error that the demo ends with when something is not as it should be."""

from __future__ import annotations


class DemoError(Exception):
    """A step of the demo had another result than it should have."""
