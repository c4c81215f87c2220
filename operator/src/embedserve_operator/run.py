"""The process: wins the Lease, works while it holds it, ends when it loses it."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Coroutine
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

import kopf

from embedserve_operator.adapter.registrar import Registrar
from embedserve_operator.audit import WATCHED_KINDS, Audit
from embedserve_operator.controller import Controller
from embedserve_operator.errors import ApiError, LeaseLostError, RefusedError, WatchFailedError
from embedserve_operator.health import Pulse, serve_health
from embedserve_operator.kinds import RESOURCE
from embedserve_operator.kube import Kube
from embedserve_operator.leading import Leading, leading
from embedserve_operator.pod_calls import PodCalls
from embedserve_operator.queue import WorkQueue
from embedserve_operator.settings import RegistrationSettings, RunSettings
from embedserve_operator.store import ClusterStore, Store
from embedserve_operator.watches import watch_settings, watches
from embedserve_operator.world import Key

log = logging.getLogger(__name__)

_OPENING_RETRY_SECONDS = 2.0
_LEASE_SILENCE_SECONDS = 60.0
_WORKER_SILENCE_SECONDS = 600.0
"""A pass makes some ten requests, each bounded; a worker that is silent for longer hangs."""
_REGISTRAR_SILENCE_SECONDS = 300.0
_SILENT_AUDITS = 4
"""A watch that so many audits have found dead is."""


class Lines(NamedTuple):
    """Connections to others."""

    kube: Kube
    calls: PodCalls


async def run(settings: RunSettings) -> int:
    """Run until told to stop; returns the exit status."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(tell_error)
    stop = asyncio.Event()
    _on_signals(stop)
    pulse = Pulse(loop.time)
    pulse.expect("lease", _LEASE_SILENCE_SECONDS)
    health = await serve_health(pulse, settings.health_port)
    try:
        async with (
            Kube(request_timeout=settings.request_timeout, namespaces=settings.namespaces) as kube,
            PodCalls(tell_timeout=settings.tell_timeout, check_timeout=settings.check_timeout) as calls,
            leading(
                settings.lease,
                settings.identity,
                request_timeout=settings.request_timeout,
                now=_now,
                on_attempt=lambda: pulse.beat("lease"),
            ) as elector,
        ):
            kube.write_only_while(elector.leads)
            if not await _unless(stop, elector.win()):
                return 0
            try:
                return await _lead(settings, Lines(kube, calls), elector, pulse, stop)
            finally:
                await elector.release()
    finally:
        await health.cleanup()


async def _lead(
    settings: RunSettings, lines: Lines, elector: Leading, pulse: Pulse, stop: asyncio.Event
) -> int:
    # Started before kopf: tasks that are younger than kopf are taken for its own and cancelled with it.
    tasks = [asyncio.create_task(elector.keep(), name="keep the Lease")]
    desk = _desk(settings, lines.kube, pulse)
    try:
        opening = asyncio.create_task(_open(lines.kube, desk.audit), name="fill the caches")
        try:
            await _first_of(stop, *tasks, opening)
        finally:
            await _end([opening])
        if not stop.is_set():
            tasks += _start(settings, lines, desk, pulse, stop)
            await _first_of(stop, *tasks)
        return 0 if stop.is_set() else 1
    except LeaseLostError as error:
        log.error("no longer leading: %s", error)
        return 1
    except WatchFailedError as error:
        log.error("a watch has failed, and all are begun anew by a new process: %s", error)
        return 1
    except ApiError as error:
        log.error("cannot work: %s", error)
        return 1
    finally:
        await _end(tasks)


class _Desk(NamedTuple):
    """What is known and what is to be done while this process leads."""

    store: Store
    cluster: ClusterStore
    queue: WorkQueue[Key]
    audit: Audit


def _desk(settings: RunSettings, kube: Kube, pulse: Pulse) -> _Desk:
    store, cluster = Store(), ClusterStore(watches_nodes=settings.watch_nodes)
    queue: WorkQueue[Key] = WorkQueue(first=settings.backoff_first, limit=settings.backoff_limit)
    for kind in WATCHED_KINDS:
        pulse.expect(f"watch of {kind}", _SILENT_AUDITS * settings.audit_interval)
    audit = Audit(
        kube,
        store,
        cluster,
        queue,
        watches_nodes=settings.watch_nodes,
        on_live_watch=lambda kind: pulse.beat(f"watch of {kind}"),
    )
    return _Desk(store, cluster, queue, audit)


def _start(
    settings: RunSettings, lines: Lines, desk: _Desk, pulse: Pulse, stop: asyncio.Event
) -> list[asyncio.Task[None]]:
    """Start what works while this process leads; none of it ends by itself."""
    kube, calls = lines
    store, cluster, queue, audit = desk
    relisted, ready = asyncio.Event(), asyncio.Event()
    controller = Controller(kube, store, cluster, queue, calls, settings=settings.render, now=_now)
    tasks = []
    for number in range(settings.workers):
        name = f"worker-{number}"
        pulse.expect(name, _WORKER_SILENCE_SECONDS)
        tasks.append(asyncio.create_task(controller.work(partial(pulse.beat, name)), name=name))
    tasks.append(asyncio.create_task(audit.run(settings.audit_interval, relisted), name="audit"))
    if settings.adapter is not None:
        registrar = Registrar(
            kube,
            RegistrationSettings(settings.adapter),
            clock=asyncio.get_running_loop().time,
            now=_now,
            on_providers=cluster.have_metrics_providers,
        )
        pulse.expect("registrar", _REGISTRAR_SILENCE_SECONDS)
        beat = partial(pulse.beat, "registrar")
        tasks.append(asyncio.create_task(registrar.run(beat), name="register the metrics adapter"))
    # kopf puts its own signal handlers in place; ours come back when it is up.
    tasks.append(asyncio.create_task(_take_signals_back(ready, stop), name="take the signals back"))
    registry = watches(store, cluster, queue, relisted, nodes=settings.watch_nodes)
    tasks.append(asyncio.create_task(_watch(settings, registry, ready, stop), name="watch"))
    return tasks


async def _watch(
    settings: RunSettings, registry: kopf.OperatorRegistry, ready: asyncio.Event, stop: asyncio.Event
) -> None:
    try:
        await kopf.operator(
            registry=registry,
            settings=watch_settings(),
            clusterwide=not settings.namespaces,
            namespaces=settings.namespaces,
            standalone=True,
            # Else kopf makes one up from the name of the user, and the pod's user may have none.
            identity=settings.identity,
            ready_flag=ready,
            stop_flag=stop,
        )
    except Exception as error:
        raise WatchFailedError(str(error)) from error


async def _take_signals_back(ready: asyncio.Event, stop: asyncio.Event) -> None:
    await ready.wait()
    _on_signals(stop)
    log.info("watching")
    await stop.wait()


async def _open(kube: Kube, audit: Audit) -> None:
    """Fill the caches, as soon as there is an API server that knows the resource: kopf would never serve a kind that
    appears after its start."""
    said = ""
    while True:
        try:
            if await kube.serves(RESOURCE):
                await audit.fill()
                return
            words = "the CustomResourceDefinition of EmbeddingService is not installed"
        except RefusedError:
            raise
        except ApiError as error:
            words = str(error)
        if words != said:
            log.warning("%s; waiting for it", words)
            said = words
        await asyncio.sleep(_OPENING_RETRY_SECONDS)


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


def tell_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """The loop's errors, in the log. kopf leaves the generators of its watches open, and at the end of the process the
    loop closes outer and inner ones at once; that one then finds the other closed is no error of anybody's."""
    if "asyncgen" in context:
        log.debug("%s: %s", context["message"], context.get("exception"))
    else:
        loop.default_exception_handler(context)


def _on_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)


def _now() -> datetime:
    return datetime.now(UTC)
