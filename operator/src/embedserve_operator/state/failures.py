"""Says why a pod does not serve."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemoryShortage:
    """The container that was killed since it needed more memory, and the limit that it had, if any."""

    container: str
    limit: str | int | None


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why a pod does not serve, or why a spec cannot be carried out."""

    reason: str
    """Machine-readable reason in CamelCase."""
    message: str
    is_transient: bool
    """Indicates that waiting can solve it; False when somebody has to change something."""
    is_unscheduled: bool = False
    """Indicates that no node has taken the pod."""
    ended_at: str = ""
    """The time at which the container ended, as the kubelet says; empty where no container has ended."""
    effective_from: int = 0
    """The time from which this counts as a failure, in seconds since 1970: what may be over in a moment does not count
    before.
    """
    shortage: MemoryShortage | None = None
    """The lack of memory that it is about, if any: the plan of the model's memory says what to do about it."""


def build_refusal(reason: str, message: str) -> Failure:
    """Return that a spec is refused until somebody changes something."""
    return Failure(reason, message, is_transient=False)


def build_creation_failure(message: str) -> Failure:
    """Return why pods cannot be created. `message` is what the API server answers to those who try."""
    quota = "exceeded quota" in message
    return Failure("QuotaExceeded" if quota else "PodsNotCreated", message, is_transient=True)
