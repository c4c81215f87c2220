"""The loop: events in, one pass over a resource at a time out.

kopf lists and watches, nothing else: its handlers for create, update and delete would write finalizers and
annotations into the user's resource. Its index functions run before any event handler of any kind, which is
the guarantee that no pass sees a half-filled store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Any

import kopf

from embedserve_operator.api.types import GROUP, PLURAL, VERSION
from embedserve_operator.apply import apply
from embedserve_operator.errors import ApiError
from embedserve_operator.kube import Kube
from embedserve_operator.observe import observe
from embedserve_operator.plan import make_plan
from embedserve_operator.queue import WorkQueue
from embedserve_operator.settings import RenderSettings
from embedserve_operator.specs.metadata import SERVICE_LABEL
from embedserve_operator.status import publish
from embedserve_operator.store import KINDS, POD, RESOURCE, Store
from embedserve_operator.wire import dig
from embedserve_operator.world import Key

log = logging.getLogger(__name__)

_WATCHED: dict[str, tuple[str, str, str]] = {
    RESOURCE: (GROUP, VERSION, PLURAL),
    "ConfigMap": ("", "v1", "configmaps"),
    "Deployment": ("apps", "v1", "deployments"),
    "Service": ("", "v1", "services"),
    POD: ("", "v1", "pods"),
}
_IDLE_SECONDS = 5.0
"""A worker without work gives a sign of life so often."""


class Arrivals:
    """What the watches tell of themselves."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        """An event has come: every kind has been listed."""
        self.relisted = asyncio.Event()
        """A kind has been listed, at the start or anew after a gap."""


class Controller:
    """Brings every resource that something happened to one pass further."""

    def __init__(
        self,
        kube: Kube,
        store: Store,
        queue: WorkQueue[Key],
        settings: RenderSettings,
        now: Callable[[], datetime],
    ) -> None:
        self._kube = kube
        self._store = store
        self._queue = queue
        self._settings = settings
        self._now = now

    async def reconcile(self, key: Key) -> bool:
        """One pass: observe, plan, apply, status. False when it should be repeated after a pause."""
        received = self._store.resource(key)
        if received is None or dig(received, "metadata", "deletionTimestamp") is not None:
            return True  # the children go by their owner references
        world = observe(received, self._store.children(key), self._store.pods(key))
        plan = make_plan(world, self._settings)
        refusal = await apply(plan, world, self._kube, self._store)
        await publish(
            plan.status,
            refusal,
            resource=world.resource,
            now=self._now(),
            kube=self._kube,
            store=self._store,
        )
        return refusal is None

    async def work(self, on_turn: Callable[[], None]) -> None:
        """Take keys and bring them further, for ever. Nothing that one resource causes may end the worker."""
        while True:
            on_turn()
            key = await self._queue.get(_IDLE_SECONDS)
            if key is None:
                continue
            succeeded = False
            try:
                succeeded = await self.reconcile(key)
            except ApiError as error:
                log.warning("%s: %s; trying again later", key, error)
            except Exception:
                log.exception("%s: this pass failed; trying again later", key)
            finally:
                self._queue.done(key, succeeded=succeeded)

    async def audit(self, interval: float, arrivals: Arrivals) -> None:
        """Find what is gone without an event.

        After a gap in a watch kopf lists anew, but says nothing of objects that vanished meanwhile. So after
        each new list, and from time to time, ask for the names of what exists.
        """
        # Before that the store is half-filled, and a pass on it would take what is missing for deleted.
        await arrivals.first.wait()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(interval):
                    await arrivals.relisted.wait()
            arrivals.relisted.clear()
            try:
                await self._audit_once()
            except ApiError as error:
                log.warning("the caches could not be checked: %s", error)

    async def _audit_once(self) -> None:
        for kind in KINDS:
            known = self._store.uids(kind)
            existing = await self._kube.existing_uids(kind, SERVICE_LABEL)
            for key in self._store.forget_missing(kind, existing, known):
                log.info("%s: a %s is gone and no event told so", key, kind)
                self._queue.add(key)
        for key in self._store.resources():
            self._queue.add(key)


def watch_settings() -> kopf.OperatorSettings:
    """kopf's settings: no discovery, no peering, no posting; quick recovery after an outage."""
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True
    settings.peering.standalone = True
    settings.posting.enabled = False
    # Longest pause 5 s, for five minutes; then the process ends and starts anew.
    settings.networking.error_backoffs = (1, 1, 2, 3, *(5 for _ in range(60)))
    for kind, (group, version, plural) in _WATCHED.items():
        if kind != RESOURCE:
            settings.watching.label_selectors[group, version, plural] = SERVICE_LABEL
    return settings


def watches(store: Store, queue: WorkQueue[Key], arrivals: Arrivals) -> kopf.OperatorRegistry:
    """kopf's registry: every event goes into the store, then its resource into the queue."""
    registry = kopf.OperatorRegistry()

    def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)

    kopf.on.login(registry=registry)(login)
    for kind, resource in _WATCHED.items():
        _watch(kind, resource, registry, store=store, queue=queue, arrivals=arrivals)
    return registry


def _watch(
    kind: str,
    resource: tuple[str, str, str],
    registry: kopf.OperatorRegistry,
    *,
    store: Store,
    queue: WorkQueue[Key],
    arrivals: Arrivals,
) -> None:
    async def remember(body: kopf.Body, **_: Any) -> None:
        store.put(kind, dict(body))

    async def notice(event: kopf.RawEvent, **_: Any) -> None:
        received = event["object"]
        arrivals.first.set()
        if event["type"] == "DELETED":
            queue.add(store.drop(kind, received))
            return
        if event["type"] is None:
            arrivals.relisted.set()
        queue.add(store.put(kind, received))

    kopf.index(*resource, id=f"remember-{kind.lower()}", registry=registry)(remember)
    kopf.on.event(*resource, id=f"notice-{kind.lower()}", registry=registry)(notice)
