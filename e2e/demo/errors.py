"""The error that the demo ends with when something is not as it should be."""

from __future__ import annotations


class DemoError(Exception):
    """Says what was wanted and what was found."""
