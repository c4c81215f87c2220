"""Runs the operator process: it acquires the Lease, works while it holds it, and ends when it
loses it.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import kopf
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from embedserve_operator.adapter.registrar import Registrar
from embedserve_operator.api.types import build_class_selector
from embedserve_operator.apply.call_keys import format_public_keys, load_call_key
from embedserve_operator.apply.call_signer import CallSigner
from embedserve_operator.apply.pod_client import PodClient
from embedserve_operator.cache.audit import WATCHED_KINDS, Audit
from embedserve_operator.cache.caches import Caches
from embedserve_operator.cache.cluster import ClusterCache
from embedserve_operator.cache.cluster_watch import ClusterWatch
from embedserve_operator.cache.objects import ObjectCache
from embedserve_operator.cache.placement import PlacementIndex
from embedserve_operator.cache.watches import build_registry, build_watch_settings
from embedserve_operator.clock import Clock
from embedserve_operator.errors import (
    ApiError,
    LeaseLostError,
    RefusedError,
    SettingsError,
    WatchFailedError,
)
from embedserve_operator.kube.client import KubeClient
from embedserve_operator.kube.kinds import RESOURCE
from embedserve_operator.kube.references import ObjectKey
from embedserve_operator.process.health import HeartbeatMonitor, serve_health
from embedserve_operator.process.leadership import Leadership, run_election
from embedserve_operator.process.lease import Candidate
from embedserve_operator.process.metrics import OperatorMetrics
from embedserve_operator.process.namespaces import WatchedNamespaces
from embedserve_operator.process.reconciler import ApiConnections, Reconciler
from embedserve_operator.queue.work_queue import WorkQueue
from embedserve_operator.settings import RegistrationSettings, RunSettings
from embedserve_operator.state.upgrades import UpgradePhase

log = logging.getLogger(__name__)

_OPENING_RETRY_SECONDS = 2.0
_MAX_LEASE_SILENCE_SECONDS = 60.0
_MAX_WORKER_SILENCE_SECONDS = 600.0
"""A pass makes about ten requests, each of them bounded; a worker that is silent for longer hangs."""
_MAX_REGISTRAR_SILENCE_SECONDS = 300.0
_MAX_SILENT_AUDITS = 4
"""Number of consecutive audits that must find a watch stalled before the process is restarted."""


class Monitors(NamedTuple):
    """The health checks and metrics of the process."""

    heartbeats: HeartbeatMonitor
    metrics: OperatorMetrics


async def run_operator(settings: RunSettings) -> int:
    """Run until told to stop; return the exit status."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(log_loop_error)
    stop = asyncio.Event()
    _handle_signals(stop)
    heartbeats = HeartbeatMonitor(loop.time)
    heartbeats.expect("lease", _MAX_LEASE_SILENCE_SECONDS)
    metrics = OperatorMetrics()
    health = await serve_health(heartbeats, settings.health_port, format_metrics=metrics.format_page)
    try:
        async with (
            KubeClient(
                request_timeout=settings.request_timeout,
                namespaces=settings.namespaces,
                resource_selector=build_class_selector(settings.operator_class),
                on_request=metrics.count_request,
            ) as kube,
            PodClient(
                message_timeout=settings.message_timeout, check_timeout=settings.check_timeout
            ) as pod_client,
            run_election(
                settings.lease,
                Candidate(settings.identity, on_attempt=lambda: heartbeats.record("lease")),
                Clock(),
                request_timeout=settings.request_timeout,
            ) as elector,
        ):
            kube.restrict_writes(elector.is_leader)
            pod_client.restrict_calls(elector.is_leader)
            metrics.watch_value("leader", elector.is_leader)
            if not await _run_unless_stopped(stop, elector.acquire()):
                return 0
            try:
                monitors = Monitors(heartbeats, metrics)
                return await _work_as_leader(
                    settings, ApiConnections(kube, pod_client), elector, monitors, stop
                )
            finally:
                await elector.release()
    finally:
        await health.cleanup()


async def _work_as_leader(
    settings: RunSettings,
    connections: ApiConnections,
    elector: Leadership,
    monitors: Monitors,
    stop: asyncio.Event,
) -> int:
    # This starts before kopf, which takes later tasks for its own and cancels them when it ends.
    tasks = [asyncio.create_task(elector.renew(), name="keep the Lease")]
    components = _build_components(settings, connections.kube, monitors)
    try:
        opening = asyncio.create_task(_open(settings, connections.kube, components), name="open")
        try:
            await _wait_for_first(stop, *tasks, opening)
        finally:
            await _cancel_tasks([opening])
        if not stop.is_set():
            key = opening.result()
            if key is not None:
                connections.pod_client.sign_with(CallSigner(key, elector.get_generation, Clock()))
                render = replace(settings.render, operator_keys=format_public_keys(key))
                settings = replace(settings, render=render)
            tasks += _start_tasks(settings, connections, components, monitors, stop)
            await _wait_for_first(stop, *tasks)
        return 0 if stop.is_set() else 1
    except LeaseLostError as error:
        log.error("no longer leading: %s", error)
        return 1
    except WatchFailedError as error:
        log.error("a watch has failed, and all are begun anew by a new process: %s", error)
        return 1
    except (ApiError, SettingsError) as error:
        log.error("cannot work: %s", error)
        return 1
    finally:
        await _cancel_tasks(tasks)


class _Components(NamedTuple):
    """The caches, the queue, the audit and the namespaces of a leading process."""

    caches: Caches
    queue: WorkQueue[ObjectKey]
    audit: Audit
    namespaces: WatchedNamespaces


def _build_components(settings: RunSettings, kube: KubeClient, monitors: Monitors) -> _Components:
    heartbeats, metrics = monitors
    caches = Caches(ObjectCache(), ClusterCache(watches_nodes=settings.watch_nodes))
    queue: WorkQueue[ObjectKey] = WorkQueue(
        base_delay=settings.backoff_base_delay, max_delay=settings.backoff_max_delay
    )
    metrics.watch_value("services", lambda: len(caches.objects.list_keys()))
    metrics.watch_value("queue_ready", queue.count_ready)
    metrics.watch_value("queue_later", queue.count_delayed)
    for kind in WATCHED_KINDS:
        heartbeats.expect(f"watch of {kind}", _MAX_SILENT_AUDITS * settings.audit_interval)
    audit = Audit(
        kube,
        caches,
        queue,
        watches_nodes=settings.watch_nodes,
        on_live_watch=lambda kind: heartbeats.record(f"watch of {kind}"),
    )
    return _Components(caches, queue, audit, WatchedNamespaces(kube, settings.namespaces))


def _start_tasks(
    settings: RunSettings,
    connections: ApiConnections,
    components: _Components,
    monitors: Monitors,
    stop: asyncio.Event,
) -> list[asyncio.Task[None]]:
    """Start the tasks of a leading process; none of them ends by itself."""
    heartbeats, metrics = monitors
    caches, queue, audit, namespaces = components
    objects, cluster, clock = caches.objects, caches.cluster, Clock()
    relisted, ready = asyncio.Event(), asyncio.Event()
    reconciler = Reconciler(connections, caches, queue, settings=settings.render, clock=clock)
    metrics.watch_value("upgrades_waiting", reconciler.upgrade_slots.count_waiting)
    metrics.watch_value("upgrades_rolling", partial(_count_upgrades, objects, "Rolling"))
    metrics.watch_value("upgrades_failed", partial(_count_upgrades, objects, "Failed"))
    tasks = []
    for number in range(settings.workers):
        name = f"worker-{number}"
        heartbeats.expect(name, _MAX_WORKER_SILENCE_SECONDS)
        working = reconciler.run_worker(partial(heartbeats.record, name), metrics.count_pass)
        tasks.append(asyncio.create_task(working, name=name))
    tasks.append(asyncio.create_task(reconciler.self_checks.run(), name="self-checks"))
    tasks.append(asyncio.create_task(audit.run(settings.audit_interval, relisted), name="audit"))
    tasks.append(asyncio.create_task(namespaces.run(settings.audit_interval), name="namespaces"))
    if settings.adapter is not None:
        registrar = Registrar(
            connections.kube,
            RegistrationSettings(settings.adapter),
            clock,
            on_providers=cluster.set_metrics_providers,
        )
        heartbeats.expect("registrar", _MAX_REGISTRAR_SILENCE_SECONDS)
        beat = partial(heartbeats.record, "registrar")
        tasks.append(asyncio.create_task(registrar.run(beat), name="register the metrics adapter"))
    # kopf installs its own signal handlers; ours are restored once it is running.
    tasks.append(asyncio.create_task(_restore_signal_handlers(ready, stop), name="take the signals back"))
    watch = ClusterWatch(cluster, PlacementIndex(objects, settings.render)) if settings.watch_nodes else None
    registry = build_registry(objects, queue, relisted, cluster_watch=watch)
    watching = _watch(settings, namespaces.watched, registry, ready, stop)
    tasks.append(asyncio.create_task(watching, name="watch"))
    return tasks


def _count_upgrades(objects: ObjectCache, phase: UpgradePhase) -> int:
    """Return how many services an upgrade has brought to a phase."""
    return sum(upgrade_phase == phase for upgrade_phase in objects.list_upgrades().values())


async def _watch(
    settings: RunSettings,
    namespaces: tuple[str, ...],
    registry: kopf.OperatorRegistry,
    ready: asyncio.Event,
    stop: asyncio.Event,
) -> None:
    try:
        await kopf.operator(
            registry=registry,
            settings=build_watch_settings(build_class_selector(settings.operator_class)),
            clusterwide=not namespaces,
            namespaces=namespaces,
            standalone=True,
            # Otherwise kopf derives one from the name of the user, and the pod's user may have no name.
            identity=settings.identity,
            ready_flag=ready,
            stop_flag=stop,
        )
    except Exception as error:
        raise WatchFailedError(str(error)) from error


async def _restore_signal_handlers(ready: asyncio.Event, stop: asyncio.Event) -> None:
    await ready.wait()
    _handle_signals(stop)
    log.info("watching")
    await stop.wait()


async def _open(settings: RunSettings, kube: KubeClient, components: _Components) -> Ed25519PrivateKey | None:
    """Fill the caches as soon as there is an API server that knows the resource: kopf would never serve a kind
    that appears after its start. Return the key of calls to pods, None where this account may not have one.
    """
    reported = ""
    while True:
        try:
            if await kube.serves(RESOURCE):
                await components.namespaces.choose()
                await components.audit.fill()
                return await load_call_key(kube, settings.lease.namespace, settings.lease.call_key_secret)
            message = "the CustomResourceDefinition of EmbeddingService is not installed"
        except RefusedError:
            raise
        except ApiError as error:
            message = str(error)
        if message != reported:
            log.warning("%s; waiting for it", message)
            reported = message
        await asyncio.sleep(_OPENING_RETRY_SECONDS)


async def _run_unless_stopped(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Do the work; return False when told to stop before its end."""
    task = asyncio.create_task(work)
    try:
        await _wait_for_first(stop, task)
        return task.done() and not stop.is_set()
    finally:
        await _cancel_tasks([task])


async def _wait_for_first(stop: asyncio.Event, *tasks: asyncio.Task[Any]) -> None:
    """Wait for the stop event or for the end of one of the tasks, whose error is raised."""
    stopping = asyncio.create_task(_wait_for(stop), name="wait for the order to stop")
    try:
        finished, _ = await asyncio.wait({stopping, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
    for task in finished:
        if task is not stopping:
            task.result()


async def _wait_for(event: asyncio.Event) -> None:
    await event.wait()


async def _cancel_tasks(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError, Exception):
            await task


def log_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error of the event loop.

    kopf leaves the generators of its watches open, and at the end of the process the loop closes outer and
    inner ones at once. That one of them then finds the other one closed is nobody's error.
    """
    if "asyncgen" in context:
        log.debug("%s: %s", context["message"], context.get("exception"))
    else:
        loop.default_exception_handler(context)


def _handle_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
