"""Has kopf list and watch, and nothing else.

Its handlers for create, update and delete would write finalizers and annotations into the user's resource.
Its indices are not used either: with thousands of objects, each of them would wake all the others once. So
the cache is filled before kopf starts (`Audit.fill`), and no pass sees a cache that is half full.
"""

from __future__ import annotations

import asyncio
from typing import Any

import kopf

from embedserve_operator.cache.cluster_watch import ClusterWatch
from embedserve_operator.cache.objects import ObjectCache
from embedserve_operator.kube.kinds import API_KINDS, CLAIM, CLUSTER_KINDS, LABELLED_KINDS, RESOURCE
from embedserve_operator.kube.references import ObjectKey
from embedserve_operator.manifests.metadata import SERVICE_LABEL
from embedserve_operator.queue.work_queue import WorkQueue

_PAGE_SIZE = 100
"""The number of objects that are requested at a time."""


def build_watch_settings(resource_selector: str) -> kopf.OperatorSettings:
    """Return kopf's settings: without discovery, peering and posting, and with a quick recovery after an
    outage. `resource_selector` is the label selector of the resources that are watched.
    """
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True
    settings.peering.standalone = True
    settings.posting.enabled = False
    # The pauses grow to 5 s, for five minutes; then the process ends and is started again.
    settings.networking.error_backoffs = (1, 1, 2, 3, *(5 for _ in range(60)))
    settings.watching.chunk_size = _PAGE_SIZE
    # kopf has a task for each object to which something happens. Few of them run at a time, so that the loop stays
    # responsive (it gives the heartbeat for the Lease), and they end when there is nothing to do.
    settings.queueing.worker_limit = 64
    settings.queueing.idle_timeout = 0.02
    settings.watching.label_selectors[_build_selector(RESOURCE)] = resource_selector
    for kind in LABELLED_KINDS:
        settings.watching.label_selectors[_build_selector(kind)] = SERVICE_LABEL
    return settings


def build_registry(
    objects: ObjectCache,
    queue: WorkQueue[ObjectKey],
    relisted: asyncio.Event,
    *,
    cluster_watch: ClusterWatch | None,
) -> kopf.OperatorRegistry:
    """Return kopf's registry, in which every event goes into the cache and then its resource into the queue.

    `relisted` is set when a kind has been listed, at the start or again after a gap. `cluster_watch` holds what is
    fed by events about nodes and RuntimeClasses; None where these are not watched.
    """
    registry = kopf.OperatorRegistry()

    def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)

    kopf.on.login(registry=registry)(login)
    for kind in (RESOURCE, CLAIM, *LABELLED_KINDS):
        _watch_kind(kind, registry, objects=objects, queue=queue, relisted=relisted)
    if cluster_watch is not None:
        for kind in CLUSTER_KINDS:
            _watch_cluster_kind(kind, registry, cluster_watch, queue)
    return registry


def _watch_kind(
    kind: str,
    registry: kopf.OperatorRegistry,
    *,
    objects: ObjectCache,
    queue: WorkQueue[ObjectKey],
    relisted: asyncio.Event,
) -> None:
    async def handle_event(event: kopf.RawEvent, **_: Any) -> None:
        received = event["object"]
        if event["type"] is None:
            relisted.set()
            if objects.has_seen(kind, received):
                return
        if event["type"] == "DELETED":
            objects.drop(kind, received)
        else:
            objects.put(kind, received)
        for key in objects.find_concerned(kind, received):
            queue.add(key)

    _register(kind, registry, handle_event)


def _watch_cluster_kind(
    kind: str, registry: kopf.OperatorRegistry, cluster_watch: ClusterWatch, queue: WorkQueue[ObjectKey]
) -> None:
    async def handle_event(event: kopf.RawEvent, **_: Any) -> None:
        for key in cluster_watch.handle_event(kind, event["object"], is_gone=event["type"] == "DELETED"):
            # Events of nodes are handled after those of services.
            queue.add_low_priority(key)

    _register(kind, registry, handle_event)


def _register(kind: str, registry: kopf.OperatorRegistry, handle_event: Any) -> None:
    kopf.on.event(*_build_selector(kind), id=f"watch-{kind.lower()}", registry=registry)(handle_event)


def _build_selector(kind: str) -> tuple[str, str, str]:
    api = API_KINDS[kind]
    return api.group, api.version, api.plural
