"""The loop: events in, one pass over a resource at a time out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import datetime

from embedserve_operator.apply import Applier
from embedserve_operator.errors import ApiError
from embedserve_operator.kube import Kube
from embedserve_operator.observe import observe
from embedserve_operator.pace import Pace
from embedserve_operator.plan import Plan, make_plan
from embedserve_operator.pod_calls import PodCalls
from embedserve_operator.queue import WorkQueue
from embedserve_operator.settings import RenderSettings
from embedserve_operator.status import publish
from embedserve_operator.store import ClusterStore, Store
from embedserve_operator.wire import dig
from embedserve_operator.world import Key

log = logging.getLogger(__name__)

_IDLE_SECONDS = 5.0
"""A worker without work gives a sign of life so often."""


_PROGRESS_PAUSE_SECONDS = 5.0
_PROGRESS_RATE = 5.0
"""Fetches under way are looked at so often a second, all together: each look may lead to a write of a status."""

_WORDS_PAUSE_SECONDS = 2.0
_WORDS_RATE = 100.0
"""Statuses that only count pods anew are written so often a second, all together. A pod, its Deployment and what it
says of itself become ready within a second or two, in three events: one write tells it."""


class Controller:
    """Brings every resource that something happened to one pass further."""

    def __init__(
        self,
        kube: Kube,
        store: Store,
        cluster: ClusterStore,
        queue: WorkQueue[Key],
        calls: PodCalls,
        *,
        settings: RenderSettings,
        now: Callable[[], datetime],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._store = store
        self._cluster = cluster
        self._queue = queue
        self._settings = settings
        self._now = now
        self._calls = calls
        self._applier = Applier(kube, store)
        self._pace = Pace(clock, pause=_PROGRESS_PAUSE_SECONDS, rate=_PROGRESS_RATE)
        self._words = Pace(clock, pause=_WORDS_PAUSE_SECONDS, rate=_WORDS_RATE)

    async def reconcile(self, key: Key) -> bool:
        """One pass: observe, plan, apply, status. False when it should be repeated after a pause."""
        received = self._store.resource(key)
        if received is None or dig(received, "metadata", "deletionTimestamp") is not None:
            self._calls.forget(key)
            self._pace.forget(key)
            self._words.forget(key)
            return True  # the children go by their owner references
        now = self._now()
        world = observe(
            received,
            self._store.children(key),
            self._store.pods(key),
            self._cluster.facts(),
            self._store.volume(key),
            said=self._calls.said(key),
            now=int(now.timestamp()),
        )
        self._calls.forget(key, but=world.runs)
        plan = make_plan(world, self._settings)
        heard = await self._calls.tell(key, plan.notices)
        if heard == "TooFew":
            return False
        refusal = await self._applier.apply(plan, world)
        words_in = await publish(
            plan.status,
            refusal,
            resource=world.resource,
            now=now,
            kube=self._kube,
            store=self._store,
            pace=self._words,
        )
        if words_in > 0.0:
            self._queue.add_later(key, words_in)
        # A pod that does not hear keeps nobody from proving its vectors.
        went_on = refusal is None and await self._go_on(key, plan)
        return went_on and heard == "All"

    async def _go_on(self, key: Key, plan: Plan) -> bool:
        """What leads to a further pass: answers of pods, and the time."""
        if plan.wake_after is not None:
            self._queue.add_later(key, plan.wake_after)
        await self._watch_fetch(key, plan)
        if not plan.questions:
            return True
        passed = await self._calls.ask(key, plan.questions)
        if passed:
            self._queue.add(key)
        return passed

    async def _watch_fetch(self, key: Key, plan: Plan) -> None:
        """What is new of a fetch is for the next pass to publish."""
        if not plan.fetchers:
            self._pace.forget(key)
            return
        due_in = self._pace.due_in(key)
        if due_in == 0.0:
            due_in = self._pace.look(key)
            if await self._calls.ask_progress(key, plan.fetchers):
                self._queue.add(key)
        self._queue.add_later(key, due_in)

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
