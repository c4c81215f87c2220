"""This module asks a cluster for the facts that `assess` judges.

Nothing is written: the pod that tries image volumes is a dry run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from datetime import datetime
from typing import TypeVar

from embedserve_operator.adapter.queries import METRICS_GROUP
from embedserve_operator.commands.preflight.facts import (
    ApiService,
    ClusterFacts,
    FeatureUse,
    Leader,
    OperatorTarget,
)
from embedserve_operator.errors import ApiError, RefusedError
from embedserve_operator.kube.client import KubeClient
from embedserve_operator.kube.kinds import RESOURCE, SCALED_OBJECT, SERVICE_MONITOR, STORAGE_CLASS
from embedserve_operator.kube.objects import Manifest, Received, dig, mappings, number, text
from embedserve_operator.kube.permissions import CLUSTER_PERMISSIONS, SERVICE_PERMISSIONS, Permission

T = TypeVar("T")
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
_MANAGER = "embedserve-operator"
_MAX_CONCURRENT = 16


async def gather_facts(kube: KubeClient, place: OperatorTarget, now: datetime) -> ClusterFacts:
    """Return the facts of a cluster. Raises ApiError when it cannot be reached."""
    version = await kube.get_version()
    apis = await _read_if_allowed(kube.list_labelled("APIService", ""))
    lease = await _read_if_allowed(_wrap_optional(kube.get_lease(place.namespace, place.lease)))
    classes = await _read_if_allowed(kube.list_labelled(STORAGE_CLASS, ""))
    services = await _read_if_allowed(kube.list_labelled(RESOURCE, ""))
    default = None if classes is None else _find_default_class(classes)
    return ClusterFacts(
        version=_parse_version(version),
        has_crd=await kube.serves(RESOURCE),
        missing_permissions=await _find_missing_permissions(kube, place),
        leader=_read_leader(lease[0], now) if lease else None,
        has_lease=None if lease is None else bool(lease),
        apis=None if apis is None else tuple(map(_read_api_service, apis)),
        has_metrics_group=await kube.has_group(METRICS_GROUP),
        has_keda=await kube.serves(SCALED_OBJECT),
        has_monitoring=await kube.serves(SERVICE_MONITOR),
        has_image_volumes=await _has_image_volumes(kube),
        default_storage=default,
        has_storage=None if classes is None else default is not None,
        feature_use=None if services is None else _count_feature_use(services),
    )


async def _wrap_optional(asked: Awaitable[Received | None]) -> list[Received]:
    found = await asked
    return [] if found is None else [found]


async def _read_if_allowed(asked: Awaitable[T]) -> T | None:
    """Return what was asked for; None where the caller may not see it, or where there is no such kind."""
    try:
        return await asked
    except ApiError as error:
        if error.status in (403, 404):
            return None
        raise


def _parse_version(found: Received) -> tuple[int, int] | None:
    try:
        # Some clouds write "33+".
        return int(text(found, "major")), int(text(found, "minor").rstrip("+"))
    except ValueError:
        return None


def _read_api_service(found: Received) -> ApiService:
    namespace, name = text(found, "spec", "service", "namespace"), text(found, "spec", "service", "name")
    refusals = [
        text(one, "message")
        for one in mappings(found, "status", "conditions")
        if one.get("type") == "Available" and one.get("status") != "True"
    ]
    return ApiService(
        name=text(found, "metadata", "name"),
        group=text(found, "spec", "group"),
        service=f"{namespace}/{name}" if name else "",
        is_ours=text(found, "metadata", "labels", "app.kubernetes.io/managed-by") == _MANAGER,
        is_available=not refusals,
        message="; ".join(refusals),
    )


def _read_leader(lease: Received, now: datetime) -> Leader | None:
    try:
        renewed = datetime.fromisoformat(text(lease, "spec", "renewTime"))
    except ValueError:
        return None
    age = (now - renewed).total_seconds()
    lasts = number(lease, "spec", "leaseDurationSeconds")
    return Leader(text(lease, "spec", "holderIdentity"), age, age > lasts)


def _find_default_class(classes: Sequence[Received]) -> str | None:
    return next(
        (
            text(one, "metadata", "name")
            for one in classes
            if (dig(one, "metadata", "annotations") or {}).get(_DEFAULT_CLASS) == "true"
        ),
        None,
    )


def _count_feature_use(services: Sequence[Received]) -> FeatureUse:
    volumes = [dig(one, "spec", "cache", "volume") for one in services]
    return FeatureUse(
        autoscaling=sum(dig(one, "spec", "autoscaling") is not None for one in services),
        images=sum(dig(one, "spec", "model", "source", "image") is not None for one in services),
        default_storage=sum(
            volume is not None and dig(volume, "storageClassName") is None for volume in volumes
        ),
    )


async def _has_image_volumes(kube: KubeClient) -> bool | None:
    """Return whether image volumes are switched on: a cluster without them drops the source, and then
    complains that it is missing.
    """
    volume = {"name": "model", "image": {"reference": "embedserve.dev/preflight:1"}}
    pod: Manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "embedserve-preflight-", "namespace": "default"},
        "spec": {"containers": [_build_unprivileged_container()], "volumes": [volume], **_UNPRIVILEGED_POD},
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


def _build_unprivileged_container() -> Manifest:
    """Return a container that the strictest namespace admits."""
    return {
        "name": "try",
        "image": "embedserve.dev/preflight:1",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }


async def _find_missing_permissions(kube: KubeClient, place: OperatorTarget) -> tuple[Permission, ...]:
    places = asyncio.Semaphore(_MAX_CONCURRENT)
    wanted = [
        (permission, namespace)
        for namespace in place.namespaces or ("",)
        for permission in SERVICE_PERMISSIONS
    ]
    if place.watches_nodes:
        wanted += [(permission, "") for permission in CLUSTER_PERMISSIONS]

    async def is_allowed(permission: Permission, namespace: str) -> bool:
        async with places:
            return bool(
                dig(
                    await kube.create(_build_access_review(permission, namespace, place)), "status", "allowed"
                )
            )

    allowed = await asyncio.gather(*(is_allowed(permission, namespace) for permission, namespace in wanted))
    refused = [permission for (permission, _), is_it in zip(wanted, allowed, strict=True) if not is_it]
    return tuple(dict.fromkeys(refused))


def _build_access_review(permission: Permission, namespace: str, place: OperatorTarget) -> Manifest:
    """Return a review of the caller's own rights, or of those of an account."""
    resource, _, subresource = permission.resource.partition("/")
    attributes = {
        "group": permission.group,
        "resource": resource,
        "verb": permission.verb,
        "namespace": namespace,
    }
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
