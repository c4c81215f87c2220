"""Describes pods, and what has passed between them and the operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from embedserve_operator.state.failures import Failure
from embedserve_operator.state.models import ModelReport


@dataclass(frozen=True, slots=True)
class SelfCheckResult:
    """The result of a pod's self-check of its vectors."""

    space: str | None
    """The identity of the vector space of the pod; None when the pod could not be asked."""
    dimensions: int | None
    problem: str
    """The reason why the pod did not pass; empty when it did."""
    compute_precision: str | None = None
    """Precision that the pod computes its vectors in; None where it did not report it."""
    min_cosine: float | None = None
    """The least cosine of its vectors to those of a more exact precision; None where that was not measured."""
    former_space: str | None = None
    """The name that releases before `vs2-` gave the vector space; None where they had another one."""


@dataclass(frozen=True, slots=True)
class FetchProgress:
    """The progress of a fetch, as its pod answered when it was last asked."""

    phase: str
    """Human-readable description of what the fetch is doing."""
    bytes_done: int
    bytes_total: int
    """The size of the download.

    It grows while the source is being read, since the weights are listed only after the small files.
    """
    bytes_per_second: int
    seconds_remaining: int | None
    """The time that is left; None where no rate is known."""


@dataclass(frozen=True, slots=True)
class FetchingPod:
    """A pod that is fetching now and can be asked for its progress."""

    name: str
    address: str
    run_id: str
    progress: FetchProgress | None = None


class PodReplies(NamedTuple):
    """The replies of one run of a pod's container to the operator."""

    self_check: SelfCheckResult | None = None
    announced_space: str | None = None
    """The vector space that the pod was told that the service has switched to."""
    progress: FetchProgress | None = None


ServingPhase = Literal["Pending", "Fetching", "Loading", "Ready", "Terminating"]
"""Says how far a pod is from serving; it is not Kubernetes' PodPhase."""


@dataclass(frozen=True, slots=True)
class PodState:
    """The parts of a pod that decisions rest on."""

    name: str
    revision: str
    template_hash: str
    """The hash of the pod template that the pod was made from."""
    config_map: str
    """The name of the ConfigMap that the pod mounts."""
    phase: ServingPhase
    failure: Failure | None
    report: ModelReport | None
    uid: str = ""
    address: str = ""
    """The IP address of the pod; empty before it has one."""
    run_id: str = ""
    """Identifies one run of its serving container: a restarted one knows nothing of what the previous one was
    told.
    """
    space_label: str = ""
    """The vector space that the pod is labelled with."""
    self_check: SelfCheckResult | None = None
    announced_space: str | None = None
    fetching_pod: FetchingPod | None = None
    """The pod as a fetching one, where it is fetching now."""

    @property
    def space(self) -> str | None:
        """The vector space that the pod makes, as far as it is known."""
        if self.self_check is not None and self.self_check.space is not None:
            return self.self_check.space
        return self.report.vector_space if self.report is not None else None

    @property
    def former_space(self) -> str | None:
        """Return the name that releases before `vs2-` gave the vector space of the pod, as far as it is known."""
        if self.self_check is not None and self.self_check.space is not None:
            return self.self_check.former_space
        return self.report.former_vector_space if self.report is not None else None
