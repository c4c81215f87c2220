"""What the facts of a cluster mean: findings, their text, and the exit status."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

from embedserve_operator.adapter.questions import METRICS_GROUP
from embedserve_operator.kinds import RESOURCE, definition_of
from embedserve_operator.preflight.facts import Api, Facts, Wanted

LEAST_VERSION = (1, 29)
"""Of Kubernetes, as the chart asks for it."""
_IMAGE_VOLUMES = (
    "spec.model.source.image needs Kubernetes 1.33 or newer and a container runtime that can do it"
)
_MOST_RIGHTS_NAMED = 6


class State(StrEnum):
    """Missing is what makes the command fail."""

    OK = "ok"
    LATER = "later"
    WARNING = "warning"
    UNKNOWN = "unknown"
    MISSING = "MISSING"


class Finding(NamedTuple):
    subject: str
    state: State
    words: str


def judge(facts: Facts, wanted: Wanted) -> tuple[Finding, ...]:
    """What was found, in the order in which it is told."""
    return (
        _version(facts),
        _definition(facts, wanted),
        _rights(facts),
        _operator(facts, wanted),
        _scaling(facts, wanted),
        _cpu_metrics(facts),
        *_dead_apis(facts),
        _image_volumes(facts),
        _storage(facts),
        _monitoring(facts),
    )


def report(findings: Sequence[Finding]) -> str:
    """A line for each, and one that sums up."""
    subjects = max(len(one.subject) for one in findings)
    states = max(len(one.state) for one in findings)
    lines = [f"{one.subject.ljust(subjects)}   {one.state.ljust(states)}   {one.words}" for one in findings]
    missing = sum(one.state is State.MISSING for one in findings)
    summary = f"{missing} missing" if missing else "nothing is missing"
    return "\n".join([*lines, summary, ""])


def exit_status(findings: Sequence[Finding]) -> int:
    return int(any(one.state is State.MISSING for one in findings))


def _version(facts: Facts) -> Finding:
    subject = "Kubernetes"
    if facts.version is None:
        return Finding(subject, State.UNKNOWN, "the API server does not tell its version")
    said, least = ".".join(map(str, facts.version)), ".".join(map(str, LEAST_VERSION))
    if facts.version < LEAST_VERSION:
        return Finding(subject, State.MISSING, f"{said} is too old: {least} or newer is needed")
    return Finding(subject, State.OK, said)


def _definition(facts: Facts, wanted: Wanted) -> Finding:
    name = definition_of(RESOURCE)
    if facts.is_defined:
        return Finding("definition", State.OK, f"{name} is served")
    state = State.MISSING if wanted.is_installed else State.LATER
    return Finding("definition", state, f"{name} is not there; the chart brings it, or `crds` prints it")


def _rights(facts: Facts) -> Finding:
    if not facts.lacking:
        return Finding("rights", State.OK, "all that the operator uses")
    named = ", ".join(right.words() for right in facts.lacking[:_MOST_RIGHTS_NAMED])
    more = len(facts.lacking) - _MOST_RIGHTS_NAMED
    return Finding("rights", State.MISSING, f"may not {named}{f' and {more} more' if more > 0 else ''}")


def _operator(facts: Facts, wanted: Wanted) -> Finding:
    leader = facts.leader
    if facts.has_lease is None:
        return Finding("operator", State.UNKNOWN, "the Lease may not be read")
    if leader is None or not leader.holder:
        state = State.MISSING if wanted.is_installed else State.LATER
        return Finding("operator", state, "none leads: there is no Lease that anybody holds")
    if leader.is_expired:
        words = f"{leader.holder} held the Lease, and has not renewed it for {leader.age:.0f} s: none runs"
        return Finding("operator", State.MISSING if wanted.is_installed else State.WARNING, words)
    return Finding("operator", State.OK, f"{leader.holder} leads, heard of {leader.age:.0f} s ago")


def _scaling(facts: Facts, wanted: Wanted) -> Finding:
    """Who answers autoscalers, and whether that is whom the caller or the services of the cluster need."""
    subject, there = "autoscaling", _answering(facts)
    found = ", ".join([*(api.words() for api in there), *(["KEDA"] if facts.has_keda else [])])
    problem = _scaling_problem(facts, wanted, there)
    if problem is not None:
        return Finding(subject, State.MISSING, f"{problem}; found: {found or 'nobody'}")
    if found:
        ours = " (ours)" if any(api.is_ours for api in there) else ""
        return Finding(subject, State.OK, f"{found}{ours}")
    if facts.has_metrics_group:
        return Finding(subject, State.OK, f"somebody answers {METRICS_GROUP}; who it is may not be seen")
    words = f"nobody answers {METRICS_GROUP}, and KEDA is not there: spec.autoscaling changes nothing"
    needed = wanted.provider == "auto" and facts.uses is not None and facts.uses.autoscaling
    state = State.MISSING if needed else State.OK if wanted.provider == "none" else State.WARNING
    return Finding(subject, state, words)


def _scaling_problem(facts: Facts, wanted: Wanted, there: Sequence[Api]) -> str | None:
    foreign = [api for api in there if not api.is_ours]
    dead = [api for api in there if not api.is_available]
    if wanted.provider == "keda" and not facts.has_keda:
        return "KEDA is asked for and not installed"
    if wanted.provider == "adapter" and foreign:
        return f"the adapter stays off, since somebody else has {METRICS_GROUP}"
    if wanted.provider == "adapter" and wanted.is_installed and not there and facts.apis is not None:
        return "the adapter is asked for and not registered"
    if wanted.provider == "prometheus-adapter" and not foreign and not facts.has_metrics_group:
        return f"prometheus-adapter is asked for, and nobody else has {METRICS_GROUP}"
    if dead and wanted.provider in ("auto", "adapter", "prometheus-adapter"):
        return f"{dead[0].name} does not answer: {dead[0].message}"
    return None


def _answering(facts: Facts) -> list[Api]:
    return [api for api in facts.apis or () if api.group == METRICS_GROUP]


def _cpu_metrics(facts: Facts) -> Finding:
    subject = "CPU metrics"
    if facts.apis is None:
        return Finding(subject, State.UNKNOWN, "APIServices may not be listed")
    found = next((api for api in facts.apis if api.group == "metrics.k8s.io"), None)
    if found is None:
        words = "there is no metrics-server: spec.autoscaling.metrics cannot have cpu or memory"
        return Finding(subject, State.WARNING, words)
    return Finding(subject, State.OK, found.words())


def _dead_apis(facts: Facts) -> Iterator[Finding]:
    for api in facts.apis or ():
        if not api.is_available and api.group != METRICS_GROUP:
            words = f"{api.name} does not answer, so no namespace can be deleted: {api.message}"
            yield Finding("other APIs", State.WARNING, words)


def _image_volumes(facts: Facts) -> Finding:
    subject, needed = "image volumes", facts.uses.images if facts.uses else 0
    if facts.has_image_volumes is None:
        return Finding(subject, State.UNKNOWN, "a pod may not be created for a try")
    if facts.has_image_volumes:
        return Finding(subject, State.OK, "the API server takes them")
    if needed:
        return Finding(subject, State.MISSING, f"{needed} services have one; {_IMAGE_VOLUMES}")
    return Finding(subject, State.WARNING, _IMAGE_VOLUMES)


def _storage(facts: Facts) -> Finding:
    subject, needed = "storage", facts.uses.default_storage if facts.uses else 0
    if facts.has_storage is None:
        return Finding(subject, State.UNKNOWN, "StorageClasses may not be listed")
    if facts.has_storage:
        return Finding(subject, State.OK, f"{facts.default_storage} is the default StorageClass")
    words = "there is no default StorageClass: spec.cache.volume needs storageClassName"
    if needed:
        return Finding(subject, State.MISSING, f"{needed} services rely on one; {words}")
    return Finding(subject, State.WARNING, words)


def _monitoring(facts: Facts) -> Finding:
    if facts.has_monitoring:
        return Finding("monitoring", State.OK, "ServiceMonitors can be made")
    return Finding("monitoring", State.LATER, "no definition of ServiceMonitor: none is made")
