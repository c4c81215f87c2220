"""Defines the plan: frozen values that say what is to be done."""

from __future__ import annotations

from dataclasses import dataclass

from embedserve_operator.kube.objects import Manifest
from embedserve_operator.plan.actions import (
    PodLabel,
    PodMessage,
    ReplacementTime,
    ReplicasOwnershipTransfer,
    SelfCheckRequest,
)
from embedserve_operator.plan.decision import Decision
from embedserve_operator.plan.upgrade_cases import UpgradeStep
from embedserve_operator.state.failures import Failure
from embedserve_operator.state.jobs import JobState
from embedserve_operator.state.pods import FetchingPod
from embedserve_operator.state.resource import Child


@dataclass(frozen=True, slots=True)
class SpecRefusal:
    """The reason why a spec is not carried out; everything that serves stays as it is."""

    failure: Failure
    blocked_change: Decision | None = None
    """The decision about a change of the model that is blocked as well."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that is to be done about one resource."""

    outcome: Decision | SpecRefusal | None
    """The decision about the spec, for the status; None where this version of the operator cannot read the spec."""
    children: tuple[Manifest, ...] = ()
    """The children as they should be, in the order in which they are applied."""
    prune: tuple[Child, ...] = ()
    """The children that are no longer wanted."""
    upgrade: UpgradeStep = "Unaffected"
    """The step that an upgrade of the operator takes with the pods that serve."""
    jobs_to_create: tuple[Manifest, ...] = ()
    """The Jobs to create, unless they exist by then."""
    jobs_to_delete: tuple[JobState, ...] = ()
    """The Jobs to delete."""
    ownership_transfers: tuple[ReplicasOwnershipTransfer, ...] = ()
    """The numbers of pods that the second field manager writes, at most one for a Deployment."""
    replacement_times: tuple[ReplacementTime, ...] = ()
    """The annotations to write before any child, so that they are not lost whatever happens then."""
    labels: tuple[PodLabel, ...] = ()
    messages: tuple[PodMessage, ...] = ()
    """The messages to send before anything is written, in their order."""
    self_checks: tuple[SelfCheckRequest, ...] = ()
    """The self-checks to request after everything is written; the next pass sees the answers."""
    fetching_pods: tuple[FetchingPod, ...] = ()
    """The pods that can say how far the fetch has come.

    They are asked from time to time, and later passes see the answers.
    """
    unstarted_jobs: tuple[JobState, ...] = ()
    """The Jobs that should have had a pod by now; events say why they have none."""
    wake_after: int | None = None
    """The seconds after which another pass is due even if nothing happens."""
