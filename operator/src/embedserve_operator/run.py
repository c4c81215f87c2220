"""The process: wins the Lease, works while it holds it, ends when it loses it."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Coroutine
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import kopf

from embedserve_operator.controller import Controller, watch_settings, watches
from embedserve_operator.errors import ApiError, LeaseLostError
from embedserve_operator.health import Pulse, serve_health
from embedserve_operator.kube import Kube
from embedserve_operator.lease import Elector
from embedserve_operator.queue import WorkQueue
from embedserve_operator.settings import RunSettings
from embedserve_operator.store import Store
from embedserve_operator.world import Key

log = logging.getLogger(__name__)

_CRD_RETRY_SECONDS = 2.0
_LEASE_SILENCE_SECONDS = 60.0
_WORKER_SILENCE_SECONDS = 600.0
"""A pass makes some ten requests, each bounded; a worker that is silent for longer hangs."""


async def run(settings: RunSettings) -> int:
    """Run until told to stop; returns the exit status."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    _on_signals(stop)
    pulse = Pulse(loop.time)
    pulse.expect("lease", _LEASE_SILENCE_SECONDS)
    health = await serve_health(pulse, settings.health_port)
    try:
        async with Kube(request_timeout=settings.request_timeout) as kube:
            elector = Elector(
                kube, settings.lease, settings.identity, now=_now, on_attempt=lambda: pulse.beat("lease")
            )
            if not await _unless(stop, elector.win()):
                return 0
            try:
                return await _lead(settings, kube, elector, pulse, stop)
            finally:
                await elector.release()
    finally:
        await health.cleanup()


async def _lead(
    settings: RunSettings, kube: Kube, elector: Elector, pulse: Pulse, stop: asyncio.Event
) -> int:
    # Started before kopf: tasks that are younger than kopf are taken for its own and cancelled with it.
    keeping = asyncio.create_task(elector.keep(), name="keep the Lease")
    ours = [keeping]
    ready, relisted = asyncio.Event(), asyncio.Event()
    store = Store()
    queue: WorkQueue[Key] = WorkQueue(first=settings.backoff_first, limit=settings.backoff_limit)
    controller = Controller(kube, store, queue, settings.render, _now)
    try:
        waiting = asyncio.create_task(_wait_for_crd(kube), name="wait for the CRD")
        ours.append(waiting)
        await _first_of(stop, keeping, waiting)
        if stop.is_set():
            return 0
        for number in range(settings.workers):
            loop_name = f"worker-{number}"
            pulse.expect(loop_name, _WORKER_SILENCE_SECONDS)
            beat = _beat(pulse, loop_name)
            ours.append(asyncio.create_task(controller.work(beat), name=loop_name))
        ours.append(asyncio.create_task(controller.audit(settings.audit_interval, relisted), name="audit"))
        # kopf puts its own signal handlers in place; ours come back when it is up.
        ours.append(asyncio.create_task(_after_start(ready, stop), name="after start"))
        watching = asyncio.create_task(
            kopf.operator(
                registry=watches(store, queue, relisted),
                settings=watch_settings(),
                clusterwide=True,
                standalone=True,
                # Else kopf makes one up from the name of the user, and the pod's user has none.
                identity=settings.identity,
                ready_flag=ready,
                stop_flag=stop,
            ),
            name="watch",
        )
        ours.append(watching)
        await _first_of(stop, keeping, watching)
        return 0 if stop.is_set() else 1
    except LeaseLostError as error:
        log.error("no longer leading: %s", error)
        return 1
    finally:
        await _end(ours)


async def _after_start(ready: asyncio.Event, stop: asyncio.Event) -> None:
    await ready.wait()
    _on_signals(stop)
    log.info("watching")


async def _wait_for_crd(kube: Kube) -> None:
    """kopf would never serve a kind that appears after its start."""
    said = False
    while True:
        try:
            if await kube.serves_our_kind():
                return
            words = "the CustomResourceDefinition of EmbeddingService is not installed"
        except ApiError as error:
            words = str(error)
        if not said:
            log.warning("%s; waiting for it", words)
            said = True
        await asyncio.sleep(_CRD_RETRY_SECONDS)


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Do the work; False when told to stop before its end."""
    task = asyncio.create_task(work)
    try:
        await _first_of(stop, task)
        return task.done() and not stop.is_set()
    finally:
        await _end([task])


async def _first_of(stop: asyncio.Event, *tasks: asyncio.Task[None]) -> None:
    """Wait for the order to stop or the end of one of the tasks; its error is raised."""
    stopping = asyncio.create_task(_wait(stop), name="wait for the order to stop")
    try:
        done, _ = await asyncio.wait({stopping, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
    for task in done:
        if task is not stopping:
            task.result()


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError, Exception):
            await task


def _beat(pulse: Pulse, loop: str) -> Any:
    return lambda: pulse.beat(loop)


def _on_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)


def _now() -> datetime:
    return datetime.now(UTC)
