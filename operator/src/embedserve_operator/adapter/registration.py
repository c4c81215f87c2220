"""Whether the API should be registered: decided from what the cluster has, and for how long it has been so.

A registered API that nobody answers for keeps every namespace of the cluster from being deleted; one that is registered
beside somebody else's takes its autoscalers over. So it is registered only while it works and the group is ours.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from embedserve_operator.adapter.questions import METRICS_GROUP, METRICS_VERSION
from embedserve_operator.settings import AdapterPlace, RegistrationSettings
from embedserve_operator.wire import Manifest, Received, mappings, text

API_SERVICE = f"{METRICS_VERSION}.{METRICS_GROUP}"
API_PORT = 443
_PRIORITY = 100


@dataclass(frozen=True, slots=True)
class Situation:
    """What was seen in one look."""

    ready: bool
    """A replica of the adapter is ready."""
    bundle: str
    """PEM of all certificates that replicas serve with, or are about to."""
    owner_uid: str
    """UID of the ClusterRole that goes with the release; empty when it is not there."""
    registered: Received | None
    """Our APIService."""
    foreign: tuple[str, ...]
    """Who else has versions of the group, in words."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What has to be remembered from look to look. Times by the monotonic clock."""

    bad_since: float | None = None
    """Since when the registered API does not work."""
    not_before: float = 0.0
    """When to register again at the earliest."""
    pause: float = 0.0
    """The last pause before another attempt, seconds; grows while attempts fail."""


@dataclass(frozen=True, slots=True)
class Keep:
    """Nothing is to be done; `words` say why nothing is registered, or what is wrong with what is."""

    words: str = ""


@dataclass(frozen=True, slots=True)
class Register:
    """Register, or renew the certificates of what is registered."""

    manifest: Manifest
    words: str = "registered"


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Take the registration back; `words` say why."""

    words: str


Decision = Keep | Register | Withdraw


def decide(
    seen: Situation, memory: Memory, settings: RegistrationSettings, now: float
) -> tuple[Decision, Memory]:
    """What to do now, and what to remember."""
    if seen.foreign:
        why = f"{METRICS_GROUP} is served by {', '.join(seen.foreign)}"
        return (Withdraw(why) if seen.registered is not None else Keep(why)), Memory()
    if seen.registered is None:
        return _unregistered(seen, memory, settings, now)
    trouble = _trouble(seen)
    if trouble is None:
        memory = Memory()
    elif memory.bad_since is None:
        memory = replace(memory, bad_since=now)
    elif now - memory.bad_since >= settings.grace:
        # With ready replicas it would be registered again at once, and fail again.
        pause = min(max(2 * memory.pause, settings.grace), settings.retry_limit) if seen.ready else 0.0
        return Withdraw(trouble), Memory(not_before=now + pause, pause=pause)
    wanted = _manifest(seen, settings.place)
    if seen.bundle and seen.owner_uid and _differs(wanted, seen.registered):
        return Register(wanted), memory
    return Keep(trouble or ""), memory


def providers(api_services: Iterable[Received], place: AdapterPlace | None) -> tuple[str, ...]:
    """Who else has versions of the group: each APIService that does not lead to our adapter, in words."""
    return tuple(
        _words(found)
        for found in sorted(api_services, key=lambda one: text(one, "metadata", "name"))
        if text(found, "spec", "group") == METRICS_GROUP and (place is None or not is_ours(found, place))
    )


def is_ours(found: Received, place: AdapterPlace) -> bool:
    """Whether an APIService leads to our adapter."""
    service = (text(found, "spec", "service", "namespace"), text(found, "spec", "service", "name"))
    return service == (place.namespace, place.name)


def bundle_in(found: Received) -> str:
    """The certificates in an APIService, as PEM; empty when there are none."""
    try:
        return base64.b64decode(text(found, "spec", "caBundle")).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""


def bundle_of(certificates: Sequence[str]) -> str:
    """Certificates as one PEM text."""
    return "".join(certificates)


def _unregistered(
    seen: Situation, memory: Memory, settings: RegistrationSettings, now: float
) -> tuple[Decision, Memory]:
    if not (seen.ready and seen.bundle):
        return Keep("no replica of the adapter is ready"), replace(memory, bad_since=None)
    if not seen.owner_uid:
        return Keep(f"ClusterRole {settings.place.name} does not exist; the chart makes it"), memory
    if now < memory.not_before:
        return Keep("the API server could not reach the adapter; trying again later"), memory
    return Register(_manifest(seen, settings.place)), replace(memory, bad_since=None)


def _trouble(seen: Situation) -> str | None:
    """Why what is registered does not work, in words; None when it does."""
    if not seen.ready:
        return "no replica of the adapter is ready"
    for condition in mappings(seen.registered, "status", "conditions"):
        if condition.get("type") == "Available" and condition.get("status") == "False":
            return f"the API server cannot use the adapter: {text(condition, 'message')}"
    return None


def _manifest(seen: Situation, place: AdapterPlace) -> Manifest:
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
            # It goes with the release: an API whose adapter was uninstalled would block the cluster.
            "ownerReferences": [
                {
                    "apiVersion": "rbac.authorization.k8s.io/v1",
                    "kind": "ClusterRole",
                    "name": place.name,
                    "uid": seen.owner_uid,
                }
            ],
        },
        "spec": {
            "group": METRICS_GROUP,
            "version": METRICS_VERSION,
            "groupPriorityMinimum": _PRIORITY,
            "versionPriority": _PRIORITY,
            "service": {"namespace": place.namespace, "name": place.name, "port": API_PORT},
            "caBundle": base64.b64encode(seen.bundle.encode()).decode(),
        },
    }


def _differs(wanted: Manifest, found: Received) -> bool:
    owners = [text(owner, "uid") for owner in mappings(found, "metadata", "ownerReferences")]
    return (
        text(found, "spec", "caBundle") != wanted["spec"]["caBundle"]
        or wanted["metadata"]["ownerReferences"][0]["uid"] not in owners
    )


def _words(found: Received) -> str:
    namespace, name = text(found, "spec", "service", "namespace"), text(found, "spec", "service", "name")
    served = f"Service {namespace}/{name}" if name else "the API server itself"
    return f"{served} (APIService {text(found, 'metadata', 'name')})"
