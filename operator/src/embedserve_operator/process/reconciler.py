"""Runs the reconcile loop: workers take keys from the queue, and each pass reconciles one resource."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

from embedserve_operator.apply.children import ChildApplier
from embedserve_operator.apply.pod_client import PodClient
from embedserve_operator.apply.self_checks import SelfCheckRunner
from embedserve_operator.cache.caches import Caches
from embedserve_operator.cache.job_events import JobEvents
from embedserve_operator.clock import Clock
from embedserve_operator.errors import ApiError
from embedserve_operator.kube.client import KubeClient
from embedserve_operator.kube.references import ObjectKey
from embedserve_operator.kube.views.resource import EmbeddingServiceObject
from embedserve_operator.observe.state import ReceivedObjects, observe
from embedserve_operator.plan import Plan, make_plan
from embedserve_operator.plan.upgrade_cases import is_deferred
from embedserve_operator.process.metrics import PassResult
from embedserve_operator.queue.throttle import Throttle
from embedserve_operator.queue.upgrade_slots import UpgradeSlots
from embedserve_operator.queue.work_queue import WorkQueue
from embedserve_operator.settings import RenderSettings
from embedserve_operator.state.observed import ObservedState
from embedserve_operator.status.publisher import StatusPublisher
from embedserve_operator.status.report import build_status

log = logging.getLogger(__name__)

_IDLE_SECONDS = 5.0
"""The interval at which a worker without work gives a heartbeat."""


_PROGRESS_POLL_SECONDS = 5.0
_MAX_PROGRESS_POLLS_PER_SECOND = 5.0
"""The greatest number of polls of running fetches per second in total: each poll may lead to a write of a status."""

_EVENTS_POLL_SECONDS = 15.0
_MAX_EVENTS_POLLS_PER_SECOND = 2.0
"""The greatest number of reads of the events of Jobs without pods per second in total."""


class ApiConnections(NamedTuple):
    """The clients of the API server and of the management API of pods."""

    kube: KubeClient
    pod_client: PodClient


class Reconciler:
    """Reconciles every resource to which something has happened, one pass at a time."""

    def __init__(
        self,
        connections: ApiConnections,
        caches: Caches,
        queue: WorkQueue[ObjectKey],
        *,
        settings: RenderSettings,
        clock: Clock,
    ) -> None:
        kube, pod_client = connections
        objects, monotonic = caches.objects, clock.monotonic
        self._clock = clock
        self._objects = objects
        self._cluster = caches.cluster
        self._queue = queue
        self._settings = settings
        self._pod_client = pod_client
        self._applier = ChildApplier(kube, objects)
        self.self_checks = SelfCheckRunner(pod_client, queue)
        self._progress_throttle = Throttle(
            monotonic, pause=_PROGRESS_POLL_SECONDS, rate=_MAX_PROGRESS_POLLS_PER_SECOND
        )
        self._job_events = JobEvents(kube)
        self._events_throttle = Throttle(
            monotonic, pause=_EVENTS_POLL_SECONDS, rate=_MAX_EVENTS_POLLS_PER_SECOND
        )
        self._publisher = StatusPublisher(kube, objects, monotonic)
        self.upgrade_slots = UpgradeSlots(settings.max_concurrent_upgrades)

    async def reconcile(self, key: ObjectKey) -> bool:
        """Run one pass: observe, plan, apply, status.

        Return False when it should be repeated after a pause.
        """
        resource = self._objects.get_resource(key)
        if resource is None or resource.metadata.is_being_deleted:
            self._forget(key)
            return True  # the children go by their owner references
        now = self._clock.now()
        observed = self._observe(key, resource, now)
        self._pod_client.forget(key, but=observed.run_ids)
        upgrade = self.upgrade_slots.count_others(key, self._objects.list_upgrades())
        plan = make_plan(replace(observed, upgrade=upgrade), self._settings)
        self._take_upgrade_slot(key, plan)
        delivery = await self._pod_client.send_messages(key, plan.messages)
        if delivery == "TooFew":
            return False
        failure = await self._applier.apply(plan, observed)
        status = build_status(plan, observed, failure)
        status_due_in = await self._publisher.publish(status, resource=observed.resource, now=now)
        if status_due_in > 0.0:
            self._queue.add_after(key, status_due_in)
        await self._schedule_next_pass(key, plan)
        return failure is None and delivery == "All"

    def _observe(self, key: ObjectKey, resource: EmbeddingServiceObject, now: datetime) -> ObservedState:
        """Return the observed state of a resource from the caches and from what its pods have replied."""
        volume = replace(
            self._objects.get_volume_objects(key),
            creation_problems=self._job_events.get_creation_problems(key),
        )
        return observe(
            ReceivedObjects(resource, self._objects.list_children(key), self._objects.list_pods(key), volume),
            self._cluster.get_state(),
            replies=self._pod_client.get_replies(key),
            now=int(now.timestamp()),
        )

    def _forget(self, key: ObjectKey) -> None:
        """Forget what is remembered about a resource that is gone."""
        self._pod_client.forget(key)
        self.self_checks.request(key, ())
        self._progress_throttle.forget(key)
        self._job_events.forget(key)
        self._events_throttle.forget(key)
        self._publisher.forget(key)
        self.upgrade_slots.dequeue(key)

    def _take_upgrade_slot(self, key: ObjectKey, plan: Plan) -> None:
        """Take a slot of an upgrade, or wait for one, before any other pass can decide."""
        if plan.upgrade == "Begin":
            self.upgrade_slots.acquire(key)
        elif is_deferred(plan.upgrade):
            self.upgrade_slots.enqueue(key)
        else:
            self.upgrade_slots.dequeue(key)

    def _release_upgrade_slot(self, key: ObjectKey) -> None:
        """Release the slot after a pass, and look again at the services that wait for a free one."""
        self.upgrade_slots.release(key)
        for waiting in self.upgrade_slots.take_due(self._objects.list_upgrades()):
            self._queue.add_low_priority(waiting)

    async def _schedule_next_pass(self, key: ObjectKey, plan: Plan) -> None:
        """Schedule the passes that follow from answers of pods or from the time, whatever became of the children."""
        if plan.wake_after is not None:
            self._queue.add_after(key, plan.wake_after)
        await self._watch_fetch(key, plan)
        await self._read_job_events(key, plan)
        self.self_checks.request(key, plan.self_checks)

    async def _watch_fetch(self, key: ObjectKey, plan: Plan) -> None:
        """Ask for the progress of a fetch; the next pass publishes what is new."""
        if not plan.fetching_pods:
            self._progress_throttle.forget(key)
            return
        await self._poll_if_due(
            key, self._progress_throttle, lambda: self._pod_client.refresh_progress(key, plan.fetching_pods)
        )

    async def _read_job_events(self, key: ObjectKey, plan: Plan) -> None:
        """Read why Jobs have no pods; the next pass publishes what is new."""
        if not plan.unstarted_jobs:
            self._job_events.forget(key)
            self._events_throttle.forget(key)
            return
        await self._poll_if_due(
            key, self._events_throttle, lambda: self._job_events.refresh(key, plan.unstarted_jobs)
        )

    async def _poll_if_due(
        self, key: ObjectKey, throttle: Throttle, refresh: Callable[[], Awaitable[bool]]
    ) -> None:
        """Poll something that no event reports, as often as the throttle allows; `refresh` returns whether it found
        something new, which is worth another pass.
        """
        seconds_until_due = throttle.seconds_until_due(key)
        if seconds_until_due == 0.0:
            seconds_until_due = throttle.record(key)
            if await refresh():
                self._queue.add(key)
        self._queue.add_after(key, seconds_until_due)

    async def run_worker(
        self,
        on_wait: Callable[[], None],
        on_pass: Callable[[PassResult, float], None] = lambda *_: None,
    ) -> None:
        """Take keys and reconcile them, forever. Nothing that one resource causes may end the worker.

        `on_wait` is called before each wait for a key, `on_pass` after each pass with what became of it and
        the seconds that it took.
        """
        while True:
            on_wait()
            key = await self._queue.get(_IDLE_SECONDS)
            if key is None:
                continue
            result: PassResult = "failed"
            began = self._clock.monotonic()
            try:
                result = "succeeded" if await self.reconcile(key) else "incomplete"
            except ApiError as error:
                log.warning("%s: %s; trying again later", key, error)
            except Exception:
                log.exception("%s: this pass failed; trying again later", key)
            finally:
                self._queue.done(key, succeeded=result == "succeeded")
                self._release_upgrade_slot(key)
                on_pass(result, self._clock.monotonic() - began)
