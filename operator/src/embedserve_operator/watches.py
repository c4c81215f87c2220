"""kopf lists and watches, nothing else.

Its handlers for create, update and delete would write finalizers and annotations into the user's resource. Its index
functions run before any event handler of any kind, which is the guarantee that no pass sees a half-filled store.
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


class Arrivals:
    """What the watches tell of themselves."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        """An event has come: every kind has been listed."""
        self.relisted = asyncio.Event()
        """A kind has been listed, at the start or anew after a gap."""


def watch_settings() -> kopf.OperatorSettings:
    """kopf's settings: no discovery, no peering, no posting; quick recovery after an outage."""
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True
    settings.peering.standalone = True
    settings.posting.enabled = False
    # Longest pause 5 s, for five minutes; then the process ends and starts anew.
    settings.networking.error_backoffs = (1, 1, 2, 3, *(5 for _ in range(60)))
    for kind in LABELLED_KINDS:
        settings.watching.label_selectors[_address(kind)] = SERVICE_LABEL
    return settings


def watches(
    store: Store, cluster: ClusterStore, queue: WorkQueue[Key], arrivals: Arrivals, *, nodes: bool
) -> kopf.OperatorRegistry:
    """kopf's registry: every event goes into the store, then its resource into the queue."""
    registry = kopf.OperatorRegistry()

    def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)

    kopf.on.login(registry=registry)(login)
    for kind in (RESOURCE, CLAIM, *LABELLED_KINDS):
        _watch(kind, registry, store=store, queue=queue, arrivals=arrivals)
    for kind in CLUSTER_KINDS if nodes else ():
        _watch_cluster(kind, registry, store=store, cluster=cluster, queue=queue, arrivals=arrivals)
    return registry


def _watch(
    kind: str, registry: kopf.OperatorRegistry, *, store: Store, queue: WorkQueue[Key], arrivals: Arrivals
) -> None:
    async def remember(body: kopf.Body, **_: Any) -> None:
        store.put(kind, dict(body))

    async def notice(event: kopf.RawEvent, **_: Any) -> None:
        received = event["object"]
        arrivals.first.set()
        if event["type"] == "DELETED":
            store.drop(kind, received)
        else:
            store.put(kind, received)
        if event["type"] is None:
            arrivals.relisted.set()
        for key in store.concerned(kind, received):
            queue.add(key)

    _register(kind, registry, remember, notice)


def _watch_cluster(
    kind: str,
    registry: kopf.OperatorRegistry,
    *,
    store: Store,
    cluster: ClusterStore,
    queue: WorkQueue[Key],
    arrivals: Arrivals,
) -> None:
    changed: set[str] = set()

    async def remember(name: str, body: kopf.Body, **_: Any) -> None:
        if cluster.put(kind, dict(body)):
            changed.add(name)

    async def notice(event: kopf.RawEvent, name: str, **_: Any) -> None:
        arrivals.first.set()
        gone = event["type"] == "DELETED" and cluster.drop(kind, event["object"])
        if gone or name in changed:
            changed.discard(name)
            for key in store.resources():
                queue.add(key)

    _register(kind, registry, remember, notice)


def _register(kind: str, registry: kopf.OperatorRegistry, remember: Any, notice: Any) -> None:
    kopf.index(*_address(kind), id=f"remember-{kind.lower()}", registry=registry)(remember)
    kopf.on.event(*_address(kind), id=f"notice-{kind.lower()}", registry=registry)(notice)


def _address(kind: str) -> tuple[str, str, str]:
    api = API_KINDS[kind]
    return api.group, api.version, api.plural
