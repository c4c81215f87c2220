"""Defines what a plan asks for besides manifests: frozen values, one for each act."""

from __future__ import annotations

from dataclasses import dataclass

from embedserve_operator.state.pods import PodState


@dataclass(frozen=True, slots=True)
class ReplicasOwnershipTransfer:
    """The transfer of the ownership of `spec.replicas` of a Deployment to the second field manager of the operator,
    which writes the number that the Deployment's manifest does not send."""

    deployment: str
    replicas: int


@dataclass(frozen=True, slots=True)
class ReplacementTime:
    """The annotation of a Deployment with the time at which the Service switched to another model."""

    deployment: str
    replaced_at: str | None
    """The time; None where the Deployment serves, so that nothing should be written there."""


@dataclass(frozen=True, slots=True)
class PodMessage:
    """The message to a pod that names the vector space which the service has switched to."""

    pod: PodState
    space: str
    is_required: bool
    """Indicates that nothing may be written before the pod has received it."""


@dataclass(frozen=True, slots=True)
class SelfCheckRequest:
    """A request for the self-check of a pod."""

    pod: PodState


@dataclass(frozen=True, slots=True)
class PodLabel:
    """The vector space that a pod is to be labelled with."""

    pod: PodState
    space: str
