"""Turns received objects into the observed state: everything that is known about one resource, as
frozen values.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from embedserve_operator.kube.kinds import SCALED_OBJECT
from embedserve_operator.kube.objects import Received
from embedserve_operator.kube.references import ChildRef
from embedserve_operator.kube.views.children import parse_child
from embedserve_operator.kube.views.objects import Object, Service
from embedserve_operator.kube.views.pods import Pod
from embedserve_operator.kube.views.resource import EmbeddingServiceObject
from embedserve_operator.kube.views.workloads import (
    Deployment,
    HorizontalPodAutoscaler,
    Job,
    PersistentVolumeClaim,
)
from embedserve_operator.manifests.metadata import (
    FINGERPRINT,
    MANAGED_BY,
    MANAGER,
    REVISION_LABEL,
    SERVICE_LABEL,
)
from embedserve_operator.observe.jobs import read_claim, read_jobs
from embedserve_operator.observe.pods import read_pod
from embedserve_operator.observe.resource import read_resource
from embedserve_operator.observe.workloads import read_autoscaler, read_deployment
from embedserve_operator.state.failures import Failure
from embedserve_operator.state.jobs import JobState
from embedserve_operator.state.nodes import UNKNOWN_CLUSTER, ClusterState
from embedserve_operator.state.observed import ObservedState
from embedserve_operator.state.pods import FetchingPod, PodReplies, PodState
from embedserve_operator.state.resource import Child, Resource
from embedserve_operator.state.workloads import AutoscalerState, DeploymentState


@dataclass(frozen=True, slots=True)
class VolumeObjects:
    """The claim of a resource as the watches have seen it, with the Jobs that fill it."""

    jobs: Iterable[Job] = ()
    pods: Iterable[Pod] = ()
    """The pods of those Jobs."""
    claims: Iterable[PersistentVolumeClaim] = ()
    creation_problems: Mapping[str, str] = field(default_factory=dict)
    """The reason why pods of a Job cannot be created, by the UID of the Job."""


@dataclass(frozen=True, slots=True)
class ReceivedObjects:
    """The objects of one resource as the watches have received them."""

    resource: EmbeddingServiceObject
    children: Iterable[Received] = ()
    """The children as they came, whole, since they are compared with what they should be. Some may belong to somebody
    else.
    """
    pods: Iterable[Pod] = ()
    """The pods that serve."""
    volume: VolumeObjects | None = None
    """The objects around the claim of the resource; None where nothing is known about volumes."""


def observe(
    received: ReceivedObjects,
    cluster: ClusterState = UNKNOWN_CLUSTER,
    *,
    replies: Mapping[str, PodReplies] | None = None,
    now: int = 0,
) -> ObservedState:
    """Return the observed state of a resource, without the children that belong to somebody else.

    `replies` holds what has passed with each run of a pod.
    """
    read, volume = read_resource(received.resource), received.volume
    everything = [_read_child(child) for child in received.children]
    children = sorted(
        (child for child in everything if _is_own(child.view, read)), key=lambda child: child.ref
    )
    scaled = [child.uid for child in children if child.ref.kind == SCALED_OBJECT]
    pods = tuple(sorted((_read_pod(pod, replies or {}) for pod in received.pods), key=lambda pod: pod.name))
    jobs = _read_jobs(volume, replies or {}) if volume is not None else ()
    deployments = tuple(read_deployment(c.view) for c in children if isinstance(c.view, Deployment))
    service = next((c.view for c in children if c.ref == ChildRef("Service", read.key.name)), None)
    return ObservedState(
        resource=read,
        children=tuple(children),
        deployments=deployments,
        autoscalers=_read_autoscalers(everything, {read.uid, *scaled}),
        serving_revision=_find_serving_revision(read, service, deployments),
        pods=tuple(replace(pod, failure=_drop_early_failure(pod.failure, now)) for pod in pods),
        cluster=cluster,
        now=now,
        next_failure_at=_find_next_failure_time(
            (*(pod.failure for pod in pods), *(job.failure for job in jobs)), now
        ),
        jobs=tuple(replace(job, failure=_drop_early_failure(job.failure, now)) for job in jobs),
        claims=tuple(read_claim(claim) for claim in volume.claims) if volume is not None else None,
    )


def _drop_early_failure(failure: Failure | None, now: int) -> Failure | None:
    return None if failure is None or failure.effective_from > now else failure


def _find_next_failure_time(failures: Iterable[Failure | None], now: int) -> int | None:
    """Return when the first failure that does not count yet starts to count."""
    return min(
        (
            failure.effective_from
            for failure in failures
            if failure is not None and failure.effective_from > now
        ),
        default=None,
    )


def _read_pod(pod: Pod, replies: Mapping[str, PodReplies]) -> PodState:
    facts = read_pod(pod)
    check, space, _ = replies.get(facts.run_id, PodReplies())
    return replace(
        facts,
        self_check=check,
        announced_space=space,
        fetching_pod=_add_progress(facts.fetching_pod, replies),
    )


def _read_jobs(volume: VolumeObjects, replies: Mapping[str, PodReplies]) -> tuple[JobState, ...]:
    jobs = read_jobs(volume.jobs, volume.pods, volume.creation_problems)
    return tuple(replace(job, fetching_pod=_add_progress(job.fetching_pod, replies)) for job in jobs)


def _add_progress(fetching_pod: FetchingPod | None, replies: Mapping[str, PodReplies]) -> FetchingPod | None:
    return (
        None
        if fetching_pod is None
        else replace(fetching_pod, progress=replies.get(fetching_pod.run_id, PodReplies()).progress)
    )


def _is_own(child: Object, resource: Resource) -> bool:
    """Return whether a child belongs to the resource: by its owner, or, where no controller owns it, by its labels.

    A claim that outlives its resource has no owner. `kubectl delete --cascade=orphan` takes the owner from all
    children, and a backup may bring them back without one; they are adopted, as a Deployment adopts its ReplicaSets.
    """
    owner, labels = child.metadata.controller_uid, child.metadata.labels
    if owner:
        return owner == resource.uid
    return (labels.get(MANAGED_BY), labels.get(SERVICE_LABEL)) == (MANAGER, resource.key.name)


def _read_autoscalers(children: Iterable[Child], makers: Collection[str]) -> tuple[AutoscalerState, ...]:
    """Return the states of the autoscalers that the resource made, or that KEDA made of its ScaledObjects."""
    views = [child.view for child in children]
    return tuple(
        read_autoscaler(view)
        for view in views
        if isinstance(view, HorizontalPodAutoscaler) and view.metadata.controller_uid in makers
    )


def _find_serving_revision(
    resource: Resource, service: Object | None, deployments: Iterable[DeploymentState]
) -> str | None:
    """Return the revision that the Service selects; while the Service is deleted, the one that served while the
    manifest asked for another model, or the last published one.
    """
    if isinstance(service, Service):
        return service.spec.selector.get(REVISION_LABEL) or None
    for deployment in deployments:
        if deployment.followed and not deployment.replaced_at:
            return deployment.revision
    for requirement in (resource.status.selector or "").split(","):
        label, _, value = requirement.partition("=")
        if label == REVISION_LABEL:
            return value
    return None


def _read_child(received: Received) -> Child:
    view = parse_child(received)
    return Child(
        ref=view.ref,
        uid=view.metadata.uid,
        fingerprint=view.metadata.annotations.get(FINGERPRINT, ""),
        view=view,
        received=received,
    )
