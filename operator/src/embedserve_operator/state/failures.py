"""Says why a pod does not serve."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Failure:
    """Says why a pod does not serve, or why a spec cannot be carried out."""

    reason: str
    """A single CamelCase word."""
    message: str
    is_transient: bool
    """Whether waiting can solve it; False when somebody has to change something."""
    is_unscheduled: bool = False
    """Whether no node has taken the pod."""
    ended_at: str = ""
    """When the container ended, as the kubelet says; empty where no container has ended."""
    effective_from: int = 0
    """When this starts to count as a failure, in seconds since 1970: what may be over in a moment does not
    count before.
    """


def build_creation_failure(said: str) -> Failure:
    """Return why pods cannot be created. `said` is what the API server answers to those who try."""
    quota = "exceeded quota" in said
    return Failure("QuotaExceeded" if quota else "PodsNotCreated", said, is_transient=True)
