"""The one error that bringing a cluster up or down can end with."""

from __future__ import annotations


class ClusterError(Exception):
    """A step failed; the message says which, why, and shows the last log lines where there are any."""
