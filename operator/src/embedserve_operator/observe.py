"""Received objects -> World: everything that is known about one resource, as frozen values."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from embedserve_operator.api.base import problems_in_words
from embedserve_operator.api.status import EmbeddingServiceStatus
from embedserve_operator.api.types import EmbeddingServiceSpec
from embedserve_operator.jobs import read_claim, read_jobs
from embedserve_operator.kinds import CLAIM, SCALED_OBJECT
from embedserve_operator.nodes import UNKNOWN_CLUSTER, ClusterFacts, NodeFacts, Taint
from embedserve_operator.pods import mounted_config, read_pod
from embedserve_operator.specs.metadata import (
    DECLARATION,
    FINGERPRINT,
    MANAGED_BY,
    MANAGER,
    MODEL_BYTES,
    REVISION_LABEL,
    SCALED_BY,
    SERVICE_LABEL,
    SPACE_LABEL,
    TEMPLATE_HASH,
    controller_uid,
    own_claim,
)
from embedserve_operator.wire import Received, dig, mappings, number, text
from embedserve_operator.world import (
    AutoscalerFacts,
    Child,
    ChildRef,
    DeploymentFacts,
    Failure,
    Fetcher,
    JobFacts,
    Key,
    PodFacts,
    Resource,
    Said,
    World,
)


@dataclass(frozen=True, slots=True)
class VolumeSeen:
    """What the watches have seen around the claim of a resource."""

    jobs: Iterable[Received] = ()
    pods: Iterable[Received] = ()
    """Of those Jobs."""
    claims: Iterable[Received] = ()


def claim_name(resource: Received) -> str | None:
    """Name of the claim that a resource keeps its models on; None when it has none."""
    name = text(resource, "metadata", "name")
    if dig(resource, "spec", "cache", "volume") is not None:
        return own_claim(name)
    return text(resource, "spec", "cache", "claimName") or None


def observe(
    resource: Received,
    children: Iterable[Received],
    pods: Iterable[Received],
    cluster: ClusterFacts = UNKNOWN_CLUSTER,
    volume: VolumeSeen | None = None,
    *,
    said: Mapping[str, Said] | None = None,
    now: int = 0,
) -> World:
    """The world around a resource. Children that belong to somebody else are left out; `volume` is None where
    nothing of volumes is known. `said`: by runs of pods."""
    read = read_resource(resource)
    everything = list(children)
    own = sorted(
        (_child(child) for child in everything if _is_own(child, read)),
        key=lambda child: child.ref,
    )
    scaled = [child.uid for child in own if child.ref.kind == SCALED_OBJECT]
    found = tuple(sorted((_pod(pod, said or {}) for pod in pods), key=lambda pod: pod.name))
    jobs = _jobs(volume, said or {}) if volume is not None else ()
    deployments = tuple(_deployment(child.received) for child in own if child.ref.kind == "Deployment")
    service = next((c for c in own if c.ref == ChildRef("Service", read.key.name)), None)
    return World(
        resource=read,
        children=tuple(own),
        deployments=deployments,
        autoscalers=tuple(_autoscaler(found) for found in everything if _scales(found, {read.uid, *scaled})),
        serving_revision=_serving_revision(read, service),
        pods=tuple(replace(pod, failure=_counted(pod.failure, now)) for pod in found),
        cluster=cluster,
        now=now,
        due=_due((*(pod.failure for pod in found), *(job.failure for job in jobs)), now),
        jobs=tuple(replace(job, failure=_counted(job.failure, now)) for job in jobs),
        claims=tuple(read_claim(claim) for claim in volume.claims) if volume is not None else None,
    )


def _counted(failure: Failure | None, now: int) -> Failure | None:
    return None if failure is None or failure.counts_from > now else failure


def _due(failures: Iterable[Failure | None], now: int) -> int | None:
    """When the first of those that are none yet becomes one."""
    return min(
        (one.counts_from for one in failures if one is not None and one.counts_from > now), default=None
    )


def _pod(received: Received, said: Mapping[str, Said]) -> PodFacts:
    facts = read_pod(received)
    check, told, _ = said.get(facts.run, Said())
    return replace(facts, check=check, told=told, fetcher=_asked(facts.fetcher, said))


def _jobs(volume: VolumeSeen, said: Mapping[str, Said]) -> tuple[JobFacts, ...]:
    found = read_jobs(volume.jobs, volume.pods)
    return tuple(replace(job, fetcher=_asked(job.fetcher, said)) for job in found)


def _asked(fetcher: Fetcher | None, said: Mapping[str, Said]) -> Fetcher | None:
    return None if fetcher is None else replace(fetcher, progress=said.get(fetcher.run, Said()).progress)


def _is_own(child: Received, resource: Resource) -> bool:
    """A claim that outlives its resource has no owner, and is found again by its labels."""
    if controller_uid(child) == resource.uid:
        return True
    labels = dig(child, "metadata", "labels") or {}
    kept = {name: labels.get(name) for name in (MANAGED_BY, SERVICE_LABEL)}
    return (
        child.get("kind") == CLAIM
        and not controller_uid(child)
        and kept == {MANAGED_BY: MANAGER, SERVICE_LABEL: resource.key.name}
    )


def _scales(found: Received, makers: Collection[str]) -> bool:
    """Whether it is an autoscaler that the resource made, or KEDA of one of its ScaledObjects."""
    return text(found, "kind") == "HorizontalPodAutoscaler" and controller_uid(found) in makers


def _serving_revision(resource: Resource, service: Child | None) -> str | None:
    """The revision that the Service selects; while somebody deleted it, the one that was last published."""
    if service is not None:
        return text(service.received, "spec", "selector", REVISION_LABEL) or None
    for requirement in (resource.status.selector or "").split(","):
        label, _, value = requirement.partition("=")
        if label == REVISION_LABEL:
            return value
    return None


def read_resource(resource: Received) -> Resource:
    """The user's resource; faults in it are kept as words."""
    spec, problem = _spec(dig(resource, "spec"))
    return Resource(
        key=key_of(resource),
        uid=text(resource, "metadata", "uid"),
        generation=number(resource, "metadata", "generation"),
        spec=spec,
        problem=problem,
        status=_status(dig(resource, "status")),
    )


def key_of(resource: Received) -> Key:
    """Namespace and name of an object."""
    return Key(text(resource, "metadata", "namespace"), text(resource, "metadata", "name"))


def _spec(received: Any) -> tuple[EmbeddingServiceSpec | None, str]:
    try:
        return EmbeddingServiceSpec.model_validate(received), ""
    except ValidationError as error:
        return None, problems_in_words(error)


def _status(received: Any) -> EmbeddingServiceStatus:
    """The published status. One that cannot be read (another version wrote it) counts as none and is
    replaced."""
    try:
        return EmbeddingServiceStatus.model_validate(received or {})
    except ValidationError:
        return EmbeddingServiceStatus()


def _child(received: Received) -> Child:
    return Child(
        ref=ChildRef(text(received, "kind"), text(received, "metadata", "name")),
        uid=text(received, "metadata", "uid"),
        fingerprint=text(received, "metadata", "annotations", FINGERPRINT),
        received=received,
    )


def _deployment(received: Received) -> DeploymentFacts:
    status = dig(received, "status")
    creation_problem = ""
    size = text(received, "metadata", "annotations", MODEL_BYTES)
    for condition in mappings(status, "conditions"):
        if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
            creation_problem = text(condition, "message")
    return DeploymentFacts(
        name=text(received, "metadata", "name"),
        revision=text(received, "metadata", "labels", REVISION_LABEL),
        fingerprint=text(received, "metadata", "annotations", FINGERPRINT),
        config=mounted_config(dig(received, "spec", "template", "spec")),
        settled=number(status, "observedGeneration") >= number(received, "metadata", "generation"),
        wanted=number(received, "spec", "replicas"),
        replicas=number(status, "replicas"),
        updated=number(status, "updatedReplicas"),
        ready=number(status, "readyReplicas"),
        available=number(status, "availableReplicas"),
        autoscaled=bool(text(received, "metadata", "annotations", SCALED_BY)),
        space=text(received, "metadata", "labels", SPACE_LABEL),
        creation_problem=creation_problem,
        template=text(received, "spec", "template", "metadata", "annotations", TEMPLATE_HASH),
        declaration=text(received, "metadata", "annotations", DECLARATION),
        model_bytes=int(size) if size.isdecimal() else None,
    )


def _autoscaler(received: Received) -> AutoscalerFacts:
    status = dig(received, "status")
    conditions = {text(one, "type"): one for one in mappings(status, "conditions")}
    active, limited = conditions.get("ScalingActive"), conditions.get("ScalingLimited")
    metric = dig(status, "currentMetrics", 0)
    return AutoscalerFacts(
        target=text(received, "spec", "scaleTargetRef", "name"),
        current=number(status, "currentReplicas"),
        desired=number(status, "desiredReplicas"),
        value=next(
            (
                found
                for kind in ("pods", "external")
                if (found := text(metric, kind, "current", "averageValue"))
            ),
            None,
        ),
        active=None if active is None else active.get("status") == "True",
        reason=text(active, "reason"),
        message=text(active, "message"),
        at_maximum=text(limited, "status") == "True" and text(limited, "reason") == "TooManyReplicas",
    )


def read_node(received: Received) -> NodeFacts:
    """The facts of a node."""
    allocatable = dig(received, "status", "allocatable") or {}
    return NodeFacts(
        name=text(received, "metadata", "name"),
        labels={k: v for k, v in (dig(received, "metadata", "labels") or {}).items() if isinstance(v, str)},
        taints=tuple(
            Taint(text(taint, "key"), text(taint, "value"), text(taint, "effect"))
            for taint in mappings(received, "spec", "taints")
        ),
        unschedulable=dig(received, "spec", "unschedulable") is True,
        # Extended resources carry a domain, and are whole numbers.
        allocatable={
            name: int(value)
            for name, value in allocatable.items()
            if "/" in name and isinstance(value, str) and value.isdigit()
        },
    )
