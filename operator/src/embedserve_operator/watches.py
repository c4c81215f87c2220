"""kopf lists and watches, nothing else.

Its handlers for create, update and delete would write finalizers and annotations into the user's resource. Its indices
are not used either: with thousands of objects each of them would wake all others once. So the store is filled before
kopf starts (`Audit.fill`), and no pass sees a half-filled one.
"""

from __future__ import annotations

import asyncio
from typing import Any

import kopf

from embedserve_operator.kinds import API_KINDS, CLAIM, CLUSTER_KINDS, LABELLED_KINDS, RESOURCE
from embedserve_operator.queue import WorkQueue
from embedserve_operator.specs.metadata import SERVICE_LABEL
from embedserve_operator.store import ClusterStore, Store
from embedserve_operator.world import Key

_PAGE = 100
"""Objects of a list that are asked for at a time."""


def watch_settings() -> kopf.OperatorSettings:
    """kopf's settings: no discovery, no peering, no posting; quick recovery after an outage."""
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True
    settings.peering.standalone = True
    settings.posting.enabled = False
    # Longest pause 5 s, for five minutes; then the process ends and starts anew.
    settings.networking.error_backoffs = (1, 1, 2, 3, *(5 for _ in range(60)))
    settings.watching.chunk_size = _PAGE
    # Each object that something happened to has a task of kopf's; few of them at a time, so that the loop turns
    # quickly whatever comes (the Lease is renewed by it), and gone when there is nothing to do.
    settings.queueing.worker_limit = 64
    settings.queueing.idle_timeout = 0.02
    for kind in LABELLED_KINDS:
        settings.watching.label_selectors[_address(kind)] = SERVICE_LABEL
    return settings


def watches(
    store: Store, cluster: ClusterStore, queue: WorkQueue[Key], relisted: asyncio.Event, *, nodes: bool
) -> kopf.OperatorRegistry:
    """kopf's registry: every event goes into the store, then its resource into the queue.

    `relisted` is set when a kind has been listed, at the start or anew after a gap.
    """
    registry = kopf.OperatorRegistry()

    def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)

    kopf.on.login(registry=registry)(login)
    for kind in (RESOURCE, CLAIM, *LABELLED_KINDS):
        _watch(kind, registry, store=store, queue=queue, relisted=relisted)
    for kind in CLUSTER_KINDS if nodes else ():
        _watch_cluster(kind, registry, store=store, cluster=cluster, queue=queue)
    return registry


def _watch(
    kind: str,
    registry: kopf.OperatorRegistry,
    *,
    store: Store,
    queue: WorkQueue[Key],
    relisted: asyncio.Event,
) -> None:
    async def notice(event: kopf.RawEvent, **_: Any) -> None:
        received = event["object"]
        if event["type"] is None:
            relisted.set()
            if store.knows(kind, received):
                return
        if event["type"] == "DELETED":
            store.drop(kind, received)
        else:
            store.put(kind, received)
        for key in store.concerned(kind, received):
            queue.add(key)

    _register(kind, registry, notice)


def _watch_cluster(
    kind: str,
    registry: kopf.OperatorRegistry,
    *,
    store: Store,
    cluster: ClusterStore,
    queue: WorkQueue[Key],
) -> None:
    async def notice(event: kopf.RawEvent, **_: Any) -> None:
        change = cluster.drop if event["type"] == "DELETED" else cluster.put
        if change(kind, event["object"]):
            for key in store.resources():
                queue.add(key)

    _register(kind, registry, notice)


def _register(kind: str, registry: kopf.OperatorRegistry, notice: Any) -> None:
    kopf.on.event(*_address(kind), id=f"notice-{kind.lower()}", registry=registry)(notice)


def _address(kind: str) -> tuple[str, str, str]:
    api = API_KINDS[kind]
    return api.group, api.version, api.plural
