"""Assesses the facts of a cluster: it returns findings, their text, and the exit status."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

from embedserve_operator.adapter.queries import METRICS_GROUP
from embedserve_operator.commands.preflight.facts import ApiServiceFact, ClusterFacts, Expectations
from embedserve_operator.kube.kinds import RESOURCE, build_crd_name

MIN_VERSION = (1, 29)
"""The oldest version of Kubernetes that the chart accepts."""
_IMAGE_VOLUMES = (
    "spec.model.source.image needs Kubernetes 1.33 or newer and a container runtime that can do it"
)
_MAX_PERMISSIONS_NAMED = 6


class FindingState(StrEnum):
    """The severity of a finding. Only a missing thing makes the command fail."""

    OK = "ok"
    LATER = "later"
    WARNING = "warning"
    UNKNOWN = "unknown"
    MISSING = "MISSING"


class Finding(NamedTuple):
    subject: str
    state: FindingState
    message: str


def assess_cluster(facts: ClusterFacts, expectations: Expectations) -> tuple[Finding, ...]:
    """Return the findings in the order in which they are reported."""
    return (
        _assess_version(facts),
        _assess_crd(facts, expectations),
        _assess_permissions(facts),
        _assess_operator(facts, expectations),
        _assess_scaling(facts, expectations),
        _assess_cpu_metrics(facts),
        *_assess_dead_apis(facts),
        _assess_image_volumes(facts),
        _assess_storage(facts),
        _assess_monitoring(facts),
    )


def format_report(findings: Sequence[Finding]) -> str:
    """Return a line for each finding, and a summary."""
    subjects = max(len(finding.subject) for finding in findings)
    states = max(len(finding.state) for finding in findings)
    lines = [
        f"{finding.subject.ljust(subjects)}   {finding.state.ljust(states)}   {finding.message}"
        for finding in findings
    ]
    missing = sum(finding.state is FindingState.MISSING for finding in findings)
    summary = f"{missing} missing" if missing else "nothing is missing"
    return "\n".join([*lines, summary, ""])


def choose_exit_status(findings: Sequence[Finding]) -> int:
    return int(any(finding.state is FindingState.MISSING for finding in findings))


def _assess_version(facts: ClusterFacts) -> Finding:
    subject = "Kubernetes"
    if facts.version is None:
        return Finding(subject, FindingState.UNKNOWN, "the API server does not tell its version")
    version, least = ".".join(map(str, facts.version)), ".".join(map(str, MIN_VERSION))
    if facts.version < MIN_VERSION:
        return Finding(subject, FindingState.MISSING, f"{version} is too old: {least} or newer is needed")
    return Finding(subject, FindingState.OK, version)


def _assess_crd(facts: ClusterFacts, expectations: Expectations) -> Finding:
    name = build_crd_name(RESOURCE)
    if facts.has_crd:
        return Finding("definition", FindingState.OK, f"{name} is served")
    state = FindingState.MISSING if expectations.is_installed else FindingState.LATER
    return Finding("definition", state, f"{name} is not there; the chart brings it, or `crds` prints it")


def _assess_permissions(facts: ClusterFacts) -> Finding:
    if not facts.missing_permissions:
        return Finding("rights", FindingState.OK, "all that the operator uses")
    described = ", ".join(
        permission.describe() for permission in facts.missing_permissions[:_MAX_PERMISSIONS_NAMED]
    )
    num_omitted = len(facts.missing_permissions) - _MAX_PERMISSIONS_NAMED
    return Finding(
        "rights",
        FindingState.MISSING,
        f"may not {described}{f' and {num_omitted} more' if num_omitted > 0 else ''}",
    )


def _assess_operator(facts: ClusterFacts, expectations: Expectations) -> Finding:
    leader = facts.leader
    if facts.has_lease is None:
        return Finding("operator", FindingState.UNKNOWN, "the Lease may not be read")
    if leader is None or not leader.holder:
        state = FindingState.MISSING if expectations.is_installed else FindingState.LATER
        return Finding("operator", state, "none leads: there is no Lease that anybody holds")
    if leader.is_expired:
        message = f"{leader.holder} held the Lease, and has not renewed it for {leader.age:.0f} s: none runs"
        return Finding(
            "operator", FindingState.MISSING if expectations.is_installed else FindingState.WARNING, message
        )
    return Finding("operator", FindingState.OK, f"{leader.holder} leads, heard of {leader.age:.0f} s ago")


def _assess_scaling(facts: ClusterFacts, expectations: Expectations) -> Finding:
    """Return who answers autoscalers, and whether that is who the caller or the services of the cluster need."""
    subject, metrics_apis = "autoscaling", _list_metrics_apis(facts)
    providers = ", ".join([*(api.describe() for api in metrics_apis), *(["KEDA"] if facts.has_keda else [])])
    problem = _find_scaling_problem(facts, expectations, metrics_apis)
    if problem is not None:
        return Finding(subject, FindingState.MISSING, f"{problem}; found: {providers or 'nobody'}")
    if providers:
        owner_note = " (ours)" if any(api.is_ours for api in metrics_apis) else ""
        return Finding(subject, FindingState.OK, f"{providers}{owner_note}")
    if facts.has_metrics_group:
        return Finding(
            subject, FindingState.OK, f"somebody answers {METRICS_GROUP}; who it is may not be seen"
        )
    message = f"nobody answers {METRICS_GROUP}, and KEDA is not there: spec.autoscaling changes nothing"
    needed = (
        expectations.provider == "auto" and facts.feature_use is not None and facts.feature_use.autoscaling
    )
    state = (
        FindingState.MISSING
        if needed
        else FindingState.OK
        if expectations.provider == "none"
        else FindingState.WARNING
    )
    return Finding(subject, state, message)


def _find_scaling_problem(
    facts: ClusterFacts, expectations: Expectations, metrics_apis: Sequence[ApiServiceFact]
) -> str | None:
    foreign = [api for api in metrics_apis if not api.is_ours]
    dead = [api for api in metrics_apis if not api.is_available]
    if expectations.provider == "keda" and not facts.has_keda:
        return "KEDA is asked for and not installed"
    if expectations.provider == "adapter" and foreign:
        return f"the adapter stays off, since somebody else has {METRICS_GROUP}"
    if (
        expectations.provider == "adapter"
        and expectations.is_installed
        and not metrics_apis
        and facts.apis is not None
    ):
        return "the adapter is asked for and not registered"
    if expectations.provider == "prometheus-adapter" and not foreign and not facts.has_metrics_group:
        return f"prometheus-adapter is asked for, and nobody else has {METRICS_GROUP}"
    if dead and expectations.provider in ("auto", "adapter", "prometheus-adapter"):
        return f"{dead[0].name} does not answer: {dead[0].message}"
    return None


def _list_metrics_apis(facts: ClusterFacts) -> list[ApiServiceFact]:
    return [api for api in facts.apis or () if api.group == METRICS_GROUP]


def _assess_cpu_metrics(facts: ClusterFacts) -> Finding:
    subject = "CPU metrics"
    if facts.apis is None:
        return Finding(subject, FindingState.UNKNOWN, "APIServices may not be listed")
    api_service = next((api for api in facts.apis if api.group == "metrics.k8s.io"), None)
    if api_service is None:
        message = "there is no metrics-server: spec.autoscaling.metrics cannot have cpu or memory"
        return Finding(subject, FindingState.WARNING, message)
    return Finding(subject, FindingState.OK, api_service.describe())


def _assess_dead_apis(facts: ClusterFacts) -> Iterator[Finding]:
    for api in facts.apis or ():
        if not api.is_available and api.group != METRICS_GROUP:
            message = f"{api.name} does not answer, so no namespace can be deleted: {api.message}"
            yield Finding("other APIs", FindingState.WARNING, message)


def _assess_image_volumes(facts: ClusterFacts) -> Finding:
    subject, needed = "image volumes", facts.feature_use.images if facts.feature_use else 0
    if facts.has_image_volumes is None:
        return Finding(subject, FindingState.UNKNOWN, "a pod may not be created for a try")
    if facts.has_image_volumes:
        return Finding(subject, FindingState.OK, "the API server takes them")
    if needed:
        return Finding(subject, FindingState.MISSING, f"{needed} services have one; {_IMAGE_VOLUMES}")
    return Finding(subject, FindingState.WARNING, _IMAGE_VOLUMES)


def _assess_storage(facts: ClusterFacts) -> Finding:
    subject, needed = "storage", facts.feature_use.default_storage if facts.feature_use else 0
    if facts.has_storage is None:
        return Finding(subject, FindingState.UNKNOWN, "StorageClasses may not be listed")
    if facts.has_storage:
        return Finding(subject, FindingState.OK, f"{facts.default_storage} is the default StorageClass")
    message = "there is no default StorageClass: spec.cache.volume needs storageClassName"
    if needed:
        return Finding(subject, FindingState.MISSING, f"{needed} services rely on one; {message}")
    return Finding(subject, FindingState.WARNING, message)


def _assess_monitoring(facts: ClusterFacts) -> Finding:
    if facts.has_monitoring:
        return Finding("monitoring", FindingState.OK, "ServiceMonitors can be made")
    return Finding("monitoring", FindingState.LATER, "no definition of ServiceMonitor: none is made")
