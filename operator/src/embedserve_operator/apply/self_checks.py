"""Runs the self-checks of pods concurrently with the passes over their resources.

A pod may take a minute, and one that does not answer takes that at every attempt. So no pass waits for it: the answer
leads to another pass. Some pods are asked at a time, and of one namespace fewer, so that one namespace whose pods do
not answer leaves room for the others.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from embedserve_operator.apply.pod_client import PodClient
from embedserve_operator.kube.references import ObjectKey
from embedserve_operator.plan import SelfCheckRequest
from embedserve_operator.queue.work_queue import WorkQueue

MAX_RUNNING = 32
MAX_RUNNING_OF_NAMESPACE = 8
TASK_NAME_PREFIX = "self-check of "
"""The beginning of the names of the tasks that run self-checks."""
_FIRST_PAUSE_SECONDS = 1.0
_MAX_PAUSE_SECONDS = 60.0


@dataclass(slots=True)
class _Attempts:
    """Counts the self-checks of one run of a pod."""

    is_running: bool = False
    failures: int = 0
    due: float = 0.0
    """The time at which the next attempt may begin, by the clock of the event loop."""


class SelfCheckRunner:
    """Runs the self-checks of pods; a check that did not pass is repeated after a pause that doubles."""

    def __init__(self, pod_client: PodClient, queue: WorkQueue[ObjectKey]) -> None:
        self._pod_client = pod_client
        self._queue = queue
        self._attempts: dict[ObjectKey, dict[str, _Attempts]] = {}
        """By resources and runs of their pods."""
        self._slots = asyncio.Semaphore(MAX_RUNNING)
        self._slots_of_namespace: dict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(MAX_RUNNING_OF_NAMESPACE)
        )
        self._tasks: set[asyncio.Task[None]] = set()

    def request(self, key: ObjectKey, requests: Sequence[SelfCheckRequest]) -> None:
        """Request the self-checks of these pods of a resource, and of no others; each result leads to a pass."""
        previous = self._attempts.get(key, {})
        requests_by_run = {request.pod.run_id: request for request in requests}
        self._attempts[key] = {
            run: attempts
            for run, attempts in previous.items()
            if run in requests_by_run or attempts.is_running
        }
        for run, request in requests_by_run.items():
            self._request_one(key, request, self._attempts[key].setdefault(run, _Attempts()))
        if not self._attempts[key]:
            del self._attempts[key]

    def _request_one(self, key: ObjectKey, request: SelfCheckRequest, attempts: _Attempts) -> None:
        pause = attempts.due - asyncio.get_running_loop().time()
        if attempts.is_running:
            return
        if pause > 0.0:
            self._queue.add_after(key, pause)
            return
        attempts.is_running = True
        task = asyncio.create_task(self._run(key, request, attempts), name=f"{TASK_NAME_PREFIX}{key}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, key: ObjectKey, request: SelfCheckRequest, attempts: _Attempts) -> None:
        run = request.pod.run_id
        before = self._pod_client.get_replies(key).get(run)
        try:
            # Who waits for a slot of the namespace does not wait for one of all: those are for other namespaces.
            async with self._slots_of_namespace[key.namespace], self._slots:
                passed = await self._pod_client.run_self_checks(key, (request,))
        finally:
            attempts.is_running = False
        attempts.failures = 0 if passed else attempts.failures + 1
        pause = 0.0 if passed else _FIRST_PAUSE_SECONDS * 2.0 ** min(attempts.failures - 1, 32)
        pause = min(pause, _MAX_PAUSE_SECONDS)
        attempts.due = asyncio.get_running_loop().time() + pause
        if passed or self._pod_client.get_replies(key).get(run) != before:
            self._queue.add(key)
        else:
            self._queue.add_after(key, pause)

    async def run(self) -> None:
        """Keep the attempts going until this is cancelled, which ends them."""
        try:
            await asyncio.Event().wait()
        finally:
            for task in self._tasks:
                task.cancel()
