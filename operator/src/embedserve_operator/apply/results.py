"""Collects what could not be done in a pass, and decides what has to wait for it.

A refusal of one child keeps nothing back but what needs that child.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from embedserve_operator.kube.kinds import CLAIM, JOB, SCALED_OBJECT
from embedserve_operator.kube.references import ChildRef
from embedserve_operator.state.observed import ObservedState

_MAX_FAILURES = 3
"""The number of failures that a condition describes."""
_NEEDED_KINDS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        # No pod starts without its configuration, or before a policy is over it.
        "Deployment": frozenset({"ConfigMap", "NetworkPolicy"}),
        JOB: frozenset({"ConfigMap", "NetworkPolicy", CLAIM}),
        # The Service switches to pods that exist, once their vector space can be reached by its own name.
        "Service": frozenset({"Deployment", "Service"}),
        "HorizontalPodAutoscaler": frozenset({"Deployment"}),
        SCALED_OBJECT: frozenset({"Deployment"}),
    }
)
"""The kinds without which a child of a kind is not written."""
_SERVING_KINDS = frozenset({"Deployment", "Service"})
"""Objects of these kinds are what serves: they go only in a pass that could write everything of these kinds."""


@dataclass(frozen=True, slots=True)
class ApplyFailure:
    """The reason why a child could not be made what it should be."""

    reason: str
    message: str
    is_transient: bool = True
    """Indicates that a later try may pass; False when the manifest has to be changed."""


class PassResults:
    """Collects what became of the children in one pass."""

    def __init__(self, observed: ObservedState) -> None:
        self._observed = observed
        self._failures: list[ApplyFailure] = []
        self._failed_kinds: set[str] = set()
        self._missing_kinds: set[str] = set()
        """Kinds of which a child that should exist does not."""

    def record(self, ref: ChildRef, failure: ApplyFailure | None) -> bool:
        """Record what became of a child; return whether all went well."""
        if failure is None:
            return True
        self._failures.append(failure)
        self._failed_kinds.add(ref.kind)
        self._record_missing(ref)
        return False

    def may_write(self, ref: ChildRef) -> bool:
        """Return whether everything exists that a child needs; record that the child is left out where it does
        not.
        """
        if not self._missing_kinds & _NEEDED_KINDS.get(ref.kind, frozenset()):
            return True
        self._record_missing(ref)
        return False

    def _record_missing(self, ref: ChildRef) -> None:
        if self._observed.find_child(ref) is None:
            self._missing_kinds.add(ref.kind)

    def may_prune(self) -> bool:
        """Return whether what is no longer wanted may go."""
        return not (self._failed_kinds | self._missing_kinds) & _SERVING_KINDS

    def merge(self) -> ApplyFailure | None:
        """Return all failures as one, led by the first that no later try can heal; None when there are none."""
        if not self._failures:
            return None
        distinct = dict.fromkeys(sorted(self._failures, key=lambda failure: failure.is_transient))
        first, *later = distinct
        described = [
            first.message,
            *(f"{failure.reason}: {failure.message}" for failure in later[: _MAX_FAILURES - 1]),
        ]
        num_omitted = len(distinct) - len(described)
        omitted = [f"and {num_omitted} more"] if num_omitted else []
        return ApplyFailure(first.reason, "; ".join((*described, *omitted)), is_transient=first.is_transient)
