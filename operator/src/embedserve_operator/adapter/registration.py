"""Decides whether the API should be registered, from what the cluster has, and for how long it has
had it.

A registered API that nobody serves keeps every namespace of the cluster from being deleted; one that is
registered beside another provider's takes over the autoscalers of that one. So the API is registered only
while it works and the group is ours.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from embedserve_operator.adapter.queries import METRICS_GROUP, METRICS_VERSION
from embedserve_operator.kube.objects import Manifest
from embedserve_operator.kube.views.cluster import APIService
from embedserve_operator.kube.views.objects import find_condition
from embedserve_operator.settings import AdapterReference, RegistrationSettings

API_SERVICE = f"{METRICS_VERSION}.{METRICS_GROUP}"
API_PORT = 443
_PRIORITY = 100


@dataclass(frozen=True, slots=True)
class RegistrationState:
    """The state of the registration in one look at the cluster."""

    is_ready: bool
    """Indicates that a replica of the adapter is ready."""
    bundle: str
    """PEM of all certificates that replicas serve with, or are about to."""
    owner_uid: str
    """The UID of the ClusterRole that belongs to the release; empty when it does not exist."""
    registered: APIService | None
    """Our APIService, if it exists."""
    foreign: tuple[str, ...]
    """Human-readable descriptions of the others that serve versions of the group."""


@dataclass(frozen=True, slots=True)
class RegistrationMemory:
    """The facts that are remembered from one look to the next. Times are those of the monotonic clock."""

    bad_since: float | None = None
    """Since when the registered API has not worked."""
    not_before: float = 0.0
    """The earliest time to register again."""
    pause: float = 0.0
    """The last pause before another attempt, in seconds; it grows while attempts fail."""


@dataclass(frozen=True, slots=True)
class NoChange:
    """The decision to do nothing; `reason` says why nothing is registered, or what is wrong with what is."""

    verb: ClassVar[str] = "keep"
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Registration:
    """The decision to register the API, or to renew its certificates."""

    verb: ClassVar[str] = "register"
    manifest: Manifest
    reason: str = "registered"


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """The decision to take the registration back; `reason` says why."""

    verb: ClassVar[str] = "withdraw"
    reason: str


Decision = NoChange | Registration | Withdrawal


def decide_registration(
    state: RegistrationState, memory: RegistrationMemory, settings: RegistrationSettings, now: float
) -> tuple[Decision, RegistrationMemory]:
    """Return what to do now, and what to remember."""
    if state.foreign:
        reason = f"{METRICS_GROUP} is served by {', '.join(state.foreign)}"
        return (
            Withdrawal(reason) if state.registered is not None else NoChange(reason)
        ), RegistrationMemory()
    if state.registered is None:
        return _decide_unregistered(state, memory, settings, now)
    trouble = _find_trouble(state)
    if trouble is None:
        memory = RegistrationMemory()
    elif memory.bad_since is None:
        memory = replace(memory, bad_since=now)
    elif now - memory.bad_since >= settings.grace:
        # With ready replicas, the API would be registered again at once and fail again.
        pause = min(max(2 * memory.pause, settings.grace), settings.retry_limit) if state.is_ready else 0.0
        return Withdrawal(trouble), RegistrationMemory(not_before=now + pause, pause=pause)
    manifest = _build_api_service(state, settings.adapter)
    if state.bundle and state.owner_uid and _is_outdated(manifest, state.registered):
        return Registration(manifest), memory
    return NoChange(trouble or ""), memory


def find_providers(api_services: Iterable[APIService], adapter: AdapterReference | None) -> tuple[str, ...]:
    """Return human-readable descriptions of the others that serve versions of the group: of each APIService that does
    not lead to our adapter.
    """
    return tuple(
        _describe_provider(api_service)
        for api_service in sorted(api_services, key=lambda api_service: api_service.metadata.name)
        if api_service.spec.group == METRICS_GROUP and (adapter is None or not is_ours(api_service, adapter))
    )


def is_ours(api_service: APIService, adapter: AdapterReference) -> bool:
    """Return whether an APIService leads to our adapter."""
    service = api_service.spec.service
    return (service.namespace, service.name) == (adapter.namespace, adapter.name)


def read_bundle(api_service: APIService) -> str:
    """Return the certificates in an APIService, as PEM; empty when there are none."""
    try:
        return base64.b64decode(api_service.spec.ca_bundle).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""


def join_bundle(certificates: Sequence[str]) -> str:
    """Return certificates as one PEM text."""
    return "".join(certificates)


def _decide_unregistered(
    state: RegistrationState, memory: RegistrationMemory, settings: RegistrationSettings, now: float
) -> tuple[Decision, RegistrationMemory]:
    if not (state.is_ready and state.bundle):
        return NoChange("no replica of the adapter is ready"), replace(memory, bad_since=None)
    if not state.owner_uid:
        return NoChange(f"ClusterRole {settings.adapter.name} does not exist; the chart makes it"), memory
    if now < memory.not_before:
        return NoChange("the API server could not reach the adapter; trying again later"), memory
    return Registration(_build_api_service(state, settings.adapter)), replace(memory, bad_since=None)


def _find_trouble(state: RegistrationState) -> str | None:
    """Return why the registered API does not work; None when it does."""
    if not state.is_ready:
        return "no replica of the adapter is ready"
    conditions = state.registered.status.conditions if state.registered is not None else ()
    available = find_condition(conditions, "Available")
    if available is not None and available.status == "False":
        return f"the API server cannot use the adapter: {available.message}"
    return None


def _build_api_service(state: RegistrationState, adapter: AdapterReference) -> Manifest:
    return {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {
            "name": API_SERVICE,
            "labels": {
                "app.kubernetes.io/name": "embedserve",
                "app.kubernetes.io/component": "metrics-adapter",
                "app.kubernetes.io/managed-by": "embedserve-operator",
            },
            # It is deleted with the release, since an API whose adapter was uninstalled would block the cluster.
            "ownerReferences": [
                {
                    "apiVersion": "rbac.authorization.k8s.io/v1",
                    "kind": "ClusterRole",
                    "name": adapter.name,
                    "uid": state.owner_uid,
                }
            ],
        },
        "spec": {
            "group": METRICS_GROUP,
            "version": METRICS_VERSION,
            "groupPriorityMinimum": _PRIORITY,
            "versionPriority": _PRIORITY,
            "service": {"namespace": adapter.namespace, "name": adapter.name, "port": API_PORT},
            "caBundle": base64.b64encode(state.bundle.encode()).decode(),
        },
    }


def _is_outdated(manifest: Manifest, registered: APIService) -> bool:
    owners = [owner.uid for owner in registered.metadata.owner_references]
    return (
        registered.spec.ca_bundle != manifest["spec"]["caBundle"]
        or manifest["metadata"]["ownerReferences"][0]["uid"] not in owners
    )


def _describe_provider(api_service: APIService) -> str:
    service = api_service.spec.service
    served = f"Service {service.namespace}/{service.name}" if service.name else "the API server itself"
    return f"{served} (APIService {api_service.metadata.name})"
