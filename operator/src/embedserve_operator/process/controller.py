"""This module holds the reconcile loop: events come in, and one resource at a time is brought one pass
further.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime

from embedserve_operator.apply.children import ChildApplier
from embedserve_operator.apply.pod_client import PodClient
from embedserve_operator.apply.self_checks import SelfCheckRunner
from embedserve_operator.cache.cluster import ClusterCache
from embedserve_operator.cache.job_events import JobEvents
from embedserve_operator.cache.objects import ObjectCache
from embedserve_operator.errors import ApiError
from embedserve_operator.kube.client import KubeClient
from embedserve_operator.kube.references import ObjectKey
from embedserve_operator.observe.state import observe
from embedserve_operator.plan import Plan, make_plan
from embedserve_operator.process.metrics import PassResult
from embedserve_operator.queue.throttle import Throttle
from embedserve_operator.queue.work_queue import WorkQueue
from embedserve_operator.settings import RenderSettings
from embedserve_operator.status.publisher import publish

log = logging.getLogger(__name__)

_IDLE_SECONDS = 5.0
"""How often a worker without work gives a heartbeat."""


_PROGRESS_PAUSE_SECONDS = 5.0
_MAX_PROGRESS_RATE = 5.0
"""How often running fetches are looked at, per second in total: each look may lead to a write of a status."""

_EVENTS_PAUSE_SECONDS = 15.0
_MAX_EVENTS_RATE = 2.0
"""How often the events of Jobs without pods are read, per second in total."""

_STATUS_PAUSE_SECONDS = 2.0
_MAX_STATUS_RATE = 100.0
"""How often statuses are written that only count pods again, per second in total.

A pod, its Deployment and what the pod reports become ready within a second or two, in three events: one
write is enough.
"""


class Controller:
    """Brings every resource to which something has happened one pass further."""

    def __init__(
        self,
        kube: KubeClient,
        objects: ObjectCache,
        cluster: ClusterCache,
        queue: WorkQueue[ObjectKey],
        pod_client: PodClient,
        *,
        settings: RenderSettings,
        now: Callable[[], datetime],
        clock: Callable[[], float] = time.monotonic,
        on_pass: Callable[[PassResult, float], None] = lambda *_: None,
    ) -> None:
        """`on_pass` is called after each pass with what became of it and the seconds that it took."""
        self._clock = clock
        self._on_pass = on_pass
        self._kube = kube
        self._objects = objects
        self._cluster = cluster
        self._queue = queue
        self._settings = settings
        self._now = now
        self._pod_client = pod_client
        self._applier = ChildApplier(kube, objects)
        self.self_checks = SelfCheckRunner(pod_client, queue)
        self._progress_throttle = Throttle(clock, pause=_PROGRESS_PAUSE_SECONDS, rate=_MAX_PROGRESS_RATE)
        self._job_events = JobEvents(kube)
        self._events_throttle = Throttle(clock, pause=_EVENTS_PAUSE_SECONDS, rate=_MAX_EVENTS_RATE)
        self._status_throttle = Throttle(clock, pause=_STATUS_PAUSE_SECONDS, rate=_MAX_STATUS_RATE)

    async def reconcile(self, key: ObjectKey) -> bool:
        """Run one pass: observe, plan, apply, status.

        Return False when it should be repeated after a pause.
        """
        received = self._objects.get_resource(key)
        if received is None or received.metadata.is_being_deleted:
            self._pod_client.forget(key)
            self.self_checks.request(key, ())
            self._progress_throttle.forget(key)
            self._job_events.forget(key)
            self._events_throttle.forget(key)
            self._status_throttle.forget(key)
            return True  # the children go by their owner references
        now = self._now()
        observed = observe(
            received,
            self._objects.list_children(key),
            self._objects.list_pods(key),
            self._cluster.get_state(),
            replace(
                self._objects.get_volume_objects(key),
                creation_problems=self._job_events.get_creation_problems(key),
            ),
            replies=self._pod_client.get_replies(key),
            now=int(now.timestamp()),
        )
        self._pod_client.forget(key, but=observed.run_ids)
        plan = make_plan(observed, self._settings)
        delivery = await self._pod_client.send_messages(key, plan.messages)
        if delivery == "TooFew":
            return False
        failure = await self._applier.apply(plan, observed)
        status_due_in = await publish(
            plan.status,
            failure,
            resource=observed.resource,
            now=now,
            kube=self._kube,
            objects=self._objects,
            throttle=self._status_throttle,
        )
        if status_due_in > 0.0:
            self._queue.add_later(key, status_due_in)
        await self._schedule_next_pass(key, plan)
        return failure is None and delivery == "All"

    async def _schedule_next_pass(self, key: ObjectKey, plan: Plan) -> None:
        """Schedule the passes that follow from answers of pods or from the time, whatever became of the children."""
        if plan.wake_after is not None:
            self._queue.add_later(key, plan.wake_after)
        await self._watch_fetch(key, plan)
        await self._read_job_events(key, plan)
        self.self_checks.request(key, plan.self_checks)

    async def _watch_fetch(self, key: ObjectKey, plan: Plan) -> None:
        """Ask for the progress of a fetch; the next pass publishes what is new."""
        if not plan.fetching_pods:
            self._progress_throttle.forget(key)
            return
        await self._look(
            key, self._progress_throttle, lambda: self._pod_client.refresh_progress(key, plan.fetching_pods)
        )

    async def _read_job_events(self, key: ObjectKey, plan: Plan) -> None:
        """Read why Jobs have no pods; the next pass publishes what is new."""
        if not plan.unstarted_jobs:
            self._job_events.forget(key)
            self._events_throttle.forget(key)
            return
        await self._look(
            key, self._events_throttle, lambda: self._job_events.refresh(key, plan.unstarted_jobs)
        )

    async def _look(self, key: ObjectKey, throttle: Throttle, look: Callable[[], Awaitable[bool]]) -> None:
        """Look at something that no event tells, as often as the throttle allows; `look` returns whether it has found
        something new, which is worth another pass.
        """
        seconds_until_due = throttle.seconds_until_due(key)
        if seconds_until_due == 0.0:
            seconds_until_due = throttle.record(key)
            if await look():
                self._queue.add(key)
        self._queue.add_later(key, seconds_until_due)

    async def run_worker(self, on_turn: Callable[[], None]) -> None:
        """Take keys and reconcile them, forever. Nothing that one resource causes may end the worker."""
        while True:
            on_turn()
            key = await self._queue.get(_IDLE_SECONDS)
            if key is None:
                continue
            result: PassResult = "failed"
            began = self._clock()
            try:
                result = "succeeded" if await self.reconcile(key) else "incomplete"
            except ApiError as error:
                log.warning("%s: %s; trying again later", key, error)
            except Exception:
                log.exception("%s: this pass failed; trying again later", key)
            finally:
                self._queue.done(key, succeeded=result == "succeeded")
                self._on_pass(result, self._clock() - began)
