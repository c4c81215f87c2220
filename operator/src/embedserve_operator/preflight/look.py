"""Asks a cluster for what `judge` judges. Nothing is written: the pod that tries image volumes is a dry run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from datetime import datetime
from typing import TypeVar

from embedserve_operator.adapter.questions import METRICS_GROUP
from embedserve_operator.errors import ApiError, RefusedError
from embedserve_operator.kinds import RESOURCE, SCALED_OBJECT, SERVICE_MONITOR, STORAGE_CLASS
from embedserve_operator.kube import Kube
from embedserve_operator.preflight.facts import Api, Facts, Leader, Place, Uses
from embedserve_operator.rights import CLUSTER_RIGHTS, SERVICE_RIGHTS, Right
from embedserve_operator.wire import Manifest, Received, dig, mappings, number, text

T = TypeVar("T")
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
_MANAGER = "embedserve-operator"
_AT_ONCE = 16


async def look(kube: Kube, place: Place, now: datetime) -> Facts:
    """Raises ApiError when the cluster cannot be reached."""
    version = await kube.version()
    apis = await _seen(kube.list_labelled("APIService", ""))
    lease = await _seen(_found(kube.get_lease(place.namespace, place.lease)))
    classes = await _seen(kube.list_labelled(STORAGE_CLASS, ""))
    services = await _seen(kube.list_labelled(RESOURCE, ""))
    default = None if classes is None else _default_class(classes)
    return Facts(
        version=_version(version),
        is_defined=await kube.serves(RESOURCE),
        lacking=await _lacking(kube, place),
        leader=_leader(lease[0], now) if lease else None,
        has_lease=None if lease is None else bool(lease),
        apis=None if apis is None else tuple(map(_api, apis)),
        has_metrics_group=await kube.has_group(METRICS_GROUP),
        has_keda=await kube.serves(SCALED_OBJECT),
        has_monitoring=await kube.serves(SERVICE_MONITOR),
        has_image_volumes=await _takes_image_volumes(kube),
        default_storage=default,
        has_storage=None if classes is None else default is not None,
        uses=None if services is None else _uses(services),
    )


async def _found(asked: Awaitable[Received | None]) -> list[Received]:
    found = await asked
    return [] if found is None else [found]


async def _seen(asked: Awaitable[T]) -> T | None:
    """None where the caller may not look, or there is no such kind."""
    try:
        return await asked
    except ApiError as error:
        if error.status in (403, 404):
            return None
        raise


def _version(found: Received) -> tuple[int, int] | None:
    try:
        # Some clouds write "33+".
        return int(text(found, "major")), int(text(found, "minor").rstrip("+"))
    except ValueError:
        return None


def _api(found: Received) -> Api:
    namespace, name = text(found, "spec", "service", "namespace"), text(found, "spec", "service", "name")
    refusals = [
        text(one, "message")
        for one in mappings(found, "status", "conditions")
        if one.get("type") == "Available" and one.get("status") != "True"
    ]
    return Api(
        name=text(found, "metadata", "name"),
        group=text(found, "spec", "group"),
        service=f"{namespace}/{name}" if name else "",
        is_ours=text(found, "metadata", "labels", "app.kubernetes.io/managed-by") == _MANAGER,
        is_available=not refusals,
        message="; ".join(refusals),
    )


def _leader(lease: Received, now: datetime) -> Leader | None:
    try:
        renewed = datetime.fromisoformat(text(lease, "spec", "renewTime"))
    except ValueError:
        return None
    age = (now - renewed).total_seconds()
    lasts = number(lease, "spec", "leaseDurationSeconds")
    return Leader(text(lease, "spec", "holderIdentity"), age, age > lasts)


def _default_class(classes: Sequence[Received]) -> str | None:
    return next(
        (
            text(one, "metadata", "name")
            for one in classes
            if (dig(one, "metadata", "annotations") or {}).get(_DEFAULT_CLASS) == "true"
        ),
        None,
    )


def _uses(services: Sequence[Received]) -> Uses:
    volumes = [dig(one, "spec", "cache", "volume") for one in services]
    return Uses(
        autoscaling=sum(dig(one, "spec", "autoscaling") is not None for one in services),
        images=sum(dig(one, "spec", "model", "source", "image") is not None for one in services),
        default_storage=sum(
            volume is not None and dig(volume, "storageClassName") is None for volume in volumes
        ),
    )


async def _takes_image_volumes(kube: Kube) -> bool | None:
    """A cluster in which they are switched off drops the source, and then misses it."""
    volume = {"name": "model", "image": {"reference": "embedserve.dev/preflight:1"}}
    pod: Manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "embedserve-preflight-", "namespace": "default"},
        "spec": {"containers": [_unprivileged()], "volumes": [volume], **_UNPRIVILEGED_POD},
    }
    try:
        created = await kube.create(pod, dry_run=True)
    except RefusedError as error:
        return False if error.status == 422 else None
    except ApiError:
        return None
    return any(dig(one, "image") is not None for one in mappings(created, "spec", "volumes"))


_UNPRIVILEGED_POD: Manifest = {
    "securityContext": {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
}


def _unprivileged() -> Manifest:
    """Such as the strictest namespace admits."""
    return {
        "name": "try",
        "image": "embedserve.dev/preflight:1",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }


async def _lacking(kube: Kube, place: Place) -> tuple[Right, ...]:
    places = asyncio.Semaphore(_AT_ONCE)
    wanted = [(right, namespace) for namespace in place.namespaces or ("",) for right in SERVICE_RIGHTS]
    if place.watches_nodes:
        wanted += [(right, "") for right in CLUSTER_RIGHTS]

    async def is_allowed(right: Right, namespace: str) -> bool:
        async with places:
            return bool(dig(await kube.create(_review(right, namespace, place)), "status", "allowed"))

    allowed = await asyncio.gather(*(is_allowed(right, namespace) for right, namespace in wanted))
    refused = [right for (right, _), is_it in zip(wanted, allowed, strict=True) if not is_it]
    return tuple(dict.fromkeys(refused))


def _review(right: Right, namespace: str, place: Place) -> Manifest:
    """Of the caller's own rights, or of an account's."""
    resource, _, subresource = right.resource.partition("/")
    attributes = {"group": right.group, "resource": resource, "verb": right.verb, "namespace": namespace}
    if subresource:
        attributes["subresource"] = subresource
    who: Manifest = {}
    if place.account is not None:
        groups = [
            "system:serviceaccounts",
            f"system:serviceaccounts:{place.namespace}",
            "system:authenticated",
        ]
        who = {"user": f"system:serviceaccount:{place.namespace}:{place.account}", "groups": groups}
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview" if who else "SelfSubjectAccessReview",
        "metadata": {},
        "spec": {"resourceAttributes": attributes, **who},
    }
