"""Holds what is known about one EmbeddingService at a moment: frozen values that `observe` makes
and `plan` reads.
"""

from __future__ import annotations

from dataclasses import dataclass

from embedserve_operator.kube.references import ChildRef
from embedserve_operator.state.jobs import ClaimState, JobState
from embedserve_operator.state.nodes import UNKNOWN_CLUSTER, ClusterState
from embedserve_operator.state.pods import PodState
from embedserve_operator.state.resource import Child, Resource
from embedserve_operator.state.upgrades import NO_UPGRADE, UpgradeProgress
from embedserve_operator.state.workloads import AutoscalerState, DeploymentState


@dataclass(frozen=True, slots=True)
class ObservedState:
    """Everything that `plan` may look at."""

    resource: Resource
    children: tuple[Child, ...] = ()
    deployments: tuple[DeploymentState, ...] = ()
    autoscalers: tuple[AutoscalerState, ...] = ()
    serving_revision: str | None = None
    """The revision whose pods the Service selects; None before there was a Service."""
    pods: tuple[PodState, ...] = ()
    cluster: ClusterState = UNKNOWN_CLUSTER
    now: int = 0
    """The time of the observation, in seconds since 1970."""
    next_failure_at: int | None = None
    """The time at which the next failure starts to count merely because time has passed, in seconds since 1970."""
    jobs: tuple[JobState, ...] = ()
    """The Jobs on the claim that the resource uses, whichever resource they were made for."""
    claims: tuple[ClaimState, ...] | None = ()
    """The claim that the resource uses, if it exists; None where claims are not known."""
    upgrade: UpgradeProgress = NO_UPGRADE
    """Counts the other services that an upgrade of the operator rolls, or has failed with."""

    @property
    def run_ids(self) -> frozenset[str]:
        """The runs of pods with which messages or replies may have been exchanged."""
        fetching_pods = (job.fetching_pod.run_id for job in self.jobs if job.fetching_pod is not None)
        return frozenset((*(pod.run_id for pod in self.pods), *fetching_pods))

    def find_job(self, name: str) -> JobState | None:
        """Return the Job of that name, if it exists."""
        return next((job for job in self.jobs if job.name == name), None)

    def find_child(self, ref: ChildRef) -> Child | None:
        """Return the child of that kind and name, if it exists."""
        return next((child for child in self.children if child.ref == ref), None)

    def find_deployment(self, revision: str) -> DeploymentState | None:
        """Return the Deployment of a revision, if it exists."""
        return next((d for d in self.deployments if d.revision == revision), None)

    def find_autoscaler(self, deployment: str) -> AutoscalerState | None:
        """Return the autoscaler of a Deployment, if it exists."""
        return next((a for a in self.autoscalers if a.target == deployment), None)

    def list_pods(self, revision: str) -> tuple[PodState, ...]:
        """Return the pods of a revision, ordered by name."""
        return tuple(pod for pod in self.pods if pod.revision == revision)
