"""Holds the user's resource, and the child objects that exist for it."""

from __future__ import annotations

from dataclasses import dataclass

from embedserve_operator.api.status import Condition, EmbeddingServiceStatus
from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.kube.objects import Received
from embedserve_operator.kube.references import ChildRef, ObjectKey
from embedserve_operator.kube.views.objects import Object


@dataclass(frozen=True, slots=True)
class Resource:
    """The user's EmbeddingService."""

    key: ObjectKey
    uid: str
    generation: int
    spec: EmbeddingServiceSpec | None
    """The spec; None when this version of the operator cannot read it, and then `problem` says why."""
    problem: str
    status: EmbeddingServiceStatus
    """The status that was last published."""

    def find_condition(self, kind: str) -> Condition | None:
        """Return a condition of the published status."""
        return next((c for c in self.status.conditions if c.type == kind), None)


@dataclass(frozen=True, slots=True)
class Child:
    """A child object that exists."""

    ref: ChildRef
    uid: str
    fingerprint: str
    """Fingerprint of the manifest that the child was last applied from."""
    view: Object
    """The fields of the child that are read."""
    received: Received
    """The whole child, to be compared with what it should be."""
