"""The loop: events in, one pass over a resource at a time out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime

from embedserve_operator.apply import Applier
from embedserve_operator.errors import ApiError
from embedserve_operator.kube import Kube
from embedserve_operator.observe import observe
from embedserve_operator.plan import make_plan
from embedserve_operator.queue import WorkQueue
from embedserve_operator.settings import RenderSettings
from embedserve_operator.status import publish
from embedserve_operator.store import ClusterStore, Store
from embedserve_operator.wire import dig
from embedserve_operator.world import Key

log = logging.getLogger(__name__)

_IDLE_SECONDS = 5.0
"""A worker without work gives a sign of life so often."""


class Controller:
    """Brings every resource that something happened to one pass further."""

    def __init__(
        self,
        kube: Kube,
        store: Store,
        cluster: ClusterStore,
        queue: WorkQueue[Key],
        *,
        settings: RenderSettings,
        now: Callable[[], datetime],
    ) -> None:
        self._kube = kube
        self._store = store
        self._cluster = cluster
        self._queue = queue
        self._settings = settings
        self._now = now
        self._applier = Applier(kube, store)

    async def reconcile(self, key: Key) -> bool:
        """One pass: observe, plan, apply, status. False when it should be repeated after a pause."""
        received = self._store.resource(key)
        if received is None or dig(received, "metadata", "deletionTimestamp") is not None:
            return True  # the children go by their owner references
        world = observe(
            received,
            self._store.children(key),
            self._store.pods(key),
            self._cluster.facts(),
            self._store.volume(key),
        )
        plan = make_plan(world, self._settings)
        refusal = await self._applier.apply(plan, world)
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
