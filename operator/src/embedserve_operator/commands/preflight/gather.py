"""Asks a cluster for the facts that `assess` judges.

Nothing is written: the pod that tries image volumes is a dry run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from datetime import datetime
from typing import TypeVar

from embedserve_operator.adapter.queries import METRICS_GROUP
from embedserve_operator.commands.preflight.facts import (
    ApiServiceFact,
    ClusterFacts,
    FeatureUse,
    Leader,
    OperatorTarget,
)
from embedserve_operator.errors import ApiError, RefusedError
from embedserve_operator.kube.client import KubeClient
from embedserve_operator.kube.kinds import RESOURCE, SCALED_OBJECT, SERVICE_MONITOR, STORAGE_CLASS
from embedserve_operator.kube.objects import Manifest
from embedserve_operator.kube.permissions import CLUSTER_PERMISSIONS, SERVICE_PERMISSIONS, Permission
from embedserve_operator.kube.views.cluster import AccessReview, APIService, Lease, ServerVersion
from embedserve_operator.kube.views.objects import Object
from embedserve_operator.kube.views.pods import Pod
from embedserve_operator.kube.views.resource import EmbeddingServiceObject
from embedserve_operator.manifests.metadata import MANAGED_BY, MANAGER

T = TypeVar("T")
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
_MAX_CONCURRENT = 16


async def gather_facts(kube: KubeClient, target: OperatorTarget, now: datetime) -> ClusterFacts:
    """Return the facts of a cluster. Raises ApiError when it cannot be reached."""
    version = await kube.get_version()
    apis = await _read_if_allowed(kube.list_labelled("APIService", ""))
    lease = await _read_if_allowed(_wrap_optional(kube.get_lease(target.namespace, target.lease)))
    classes = await _read_if_allowed(kube.list_labelled(STORAGE_CLASS, ""))
    services = await _read_if_allowed(kube.list_labelled(RESOURCE, ""))
    default = None if classes is None else _find_default_class(map(Object.parse, classes))
    return ClusterFacts(
        version=_parse_version(version),
        has_crd=await kube.serves(RESOURCE),
        missing_permissions=await _find_missing_permissions(kube, target),
        leader=_read_leader(lease[0], now) if lease else None,
        has_lease=None if lease is None else bool(lease),
        apis=None
        if apis is None
        else tuple(_read_api_service(APIService.parse(received)) for received in apis),
        has_metrics_group=await kube.has_group(METRICS_GROUP),
        has_keda=await kube.serves(SCALED_OBJECT),
        has_monitoring=await kube.serves(SERVICE_MONITOR),
        has_image_volumes=await _has_image_volumes(kube),
        default_storage=default,
        has_storage=None if classes is None else default is not None,
        feature_use=None
        if services is None
        else _count_feature_use([EmbeddingServiceObject.parse(received) for received in services]),
    )


async def _wrap_optional(request: Awaitable[T | None]) -> list[T]:
    value = await request
    return [] if value is None else [value]


async def _read_if_allowed(request: Awaitable[T]) -> T | None:
    """Return what was asked for; None where the caller may not see it, or where there is no such kind."""
    try:
        return await request
    except ApiError as error:
        if error.status in (403, 404):
            return None
        raise


def _parse_version(version: ServerVersion) -> tuple[int, int] | None:
    try:
        # Some clouds write "33+".
        return int(version.major), int(version.minor.rstrip("+"))
    except ValueError:
        return None


def _read_api_service(api_service: APIService) -> ApiServiceFact:
    service = api_service.spec.service
    refusals = [
        condition.message
        for condition in api_service.status.conditions
        if condition.type == "Available" and not condition.is_true
    ]
    return ApiServiceFact(
        name=api_service.metadata.name,
        group=api_service.spec.group,
        service=f"{service.namespace}/{service.name}" if service.name else "",
        is_ours=api_service.metadata.labels.get(MANAGED_BY) == MANAGER,
        is_available=not refusals,
        message="; ".join(refusals),
    )


def _read_leader(lease: Lease, now: datetime) -> Leader | None:
    try:
        renewed = datetime.fromisoformat(lease.spec.renew_time)
    except ValueError:
        return None
    age = (now - renewed).total_seconds()
    return Leader(lease.spec.holder_identity, age, age > lease.spec.lease_duration_seconds)


def _find_default_class(classes: Iterable[Object]) -> str | None:
    metadatas = (storage_class.metadata for storage_class in classes)
    return next(
        (metadata.name for metadata in metadatas if metadata.annotations.get(_DEFAULT_CLASS) == "true"), None
    )


def _count_feature_use(services: Sequence[EmbeddingServiceObject]) -> FeatureUse:
    specs = [service.partial_spec for service in services]
    volumes = [spec.cache.volume for spec in specs]
    return FeatureUse(
        autoscaling=sum(spec.autoscaling is not None for spec in specs),
        images=sum(spec.model.source.image is not None for spec in specs),
        default_storage=sum(volume is not None and volume.storage_class_name is None for volume in volumes),
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
    return bool(Pod.parse(created).spec.image_volumes)


_UNPRIVILEGED_POD: Manifest = {
    "securityContext": {
        "runAsNonRoot": True,
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


async def _find_missing_permissions(kube: KubeClient, target: OperatorTarget) -> tuple[Permission, ...]:
    semaphore = asyncio.Semaphore(_MAX_CONCURRENT)
    checks = [
        (permission, namespace)
        for namespace in target.namespaces or ("",)
        for permission in SERVICE_PERMISSIONS
    ]
    if target.watches_nodes:
        checks += [(permission, "") for permission in CLUSTER_PERMISSIONS]

    async def is_allowed(permission: Permission, namespace: str) -> bool:
        async with semaphore:
            review = await kube.create(_build_access_review(permission, namespace, target))
            return AccessReview.parse(review).status.allowed

    allowed = await asyncio.gather(*(is_allowed(permission, namespace) for permission, namespace in checks))
    missing = [
        permission for (permission, _), is_permitted in zip(checks, allowed, strict=True) if not is_permitted
    ]
    return tuple(dict.fromkeys(missing))


def _build_access_review(permission: Permission, namespace: str, target: OperatorTarget) -> Manifest:
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
    subject: Manifest = {}
    if target.account is not None:
        groups = [
            "system:serviceaccounts",
            f"system:serviceaccounts:{target.namespace}",
            "system:authenticated",
        ]
        subject = {"user": f"system:serviceaccount:{target.namespace}:{target.account}", "groups": groups}
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview" if subject else "SelfSubjectAccessReview",
        "metadata": {},
        "spec": {"resourceAttributes": attributes, **subject},
    }
