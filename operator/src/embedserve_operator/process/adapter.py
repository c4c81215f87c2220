"""Runs the process of one replica of the metrics adapter (`embedserve-operator adapter`)."""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import suppress

from aiohttp import web

from embedserve_operator.adapter.certificate_rotator import CertificateRotator
from embedserve_operator.adapter.scraper import Scraper
from embedserve_operator.adapter.server import (
    FrontProxyAuthenticator,
    MetricsApi,
    TlsListener,
    build_application,
)
from embedserve_operator.clock import read_date
from embedserve_operator.errors import ApiError, ConflictError
from embedserve_operator.kube.client import KubeClient
from embedserve_operator.process.health import HeartbeatMonitor, serve_health
from embedserve_operator.settings import AdapterSettings

log = logging.getLogger(__name__)

_CACHE_SHARE = 0.9
"""The share of a period for which pages are cached: what was read for one look of the autoscaler must not be
used for its next.
"""
_MAX_SILENT_CHECKS = 30


async def run_adapter(settings: AdapterSettings) -> int:
    """Run until told to stop; return the exit status."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    heartbeats = HeartbeatMonitor(loop.time)
    heartbeats.expect("certificates", _MAX_SILENT_CHECKS * settings.check_interval)
    cache_seconds = _CACHE_SHARE * settings.hpa_period
    authenticator = FrontProxyAuthenticator()
    async with (
        KubeClient(request_timeout=settings.request_timeout) as kube,
        Scraper(cache_seconds=cache_seconds, timeout=settings.scrape_timeout, monotonic=loop.time) as scraper,
    ):
        runner = web.AppRunner(
            build_application(MetricsApi(kube, scraper, read_date), authenticator), access_log=None
        )
        await runner.setup()
        rotator = CertificateRotator(
            settings, kube, authenticator, TlsListener(runner, settings.port), read_date
        )
        probes = await serve_health(
            heartbeats, settings.health_port, lambda: rotator.ready and not stop.is_set()
        )
        try:
            await _keep_checking(rotator, heartbeats, stop, settings.check_interval)
            # The endpoints learn of the end first; until they have been updated, requests still arrive.
            await asyncio.sleep(settings.drain)
        finally:
            await probes.cleanup()
            await runner.cleanup()
    return 0


async def _keep_checking(
    rotator: CertificateRotator, heartbeats: HeartbeatMonitor, stop: asyncio.Event, interval: float
) -> None:
    while not stop.is_set():
        pause = interval if rotator.ready else min(interval, 1.0)
        try:
            await rotator.reconcile()
            heartbeats.record("certificates")
        except ConflictError:
            log.debug("another replica was quicker to publish its certificate")
        except ApiError as error:
            # The adapter keeps serving with the last known certificates.
            log.warning("certificates could not be checked: %s", error)
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await stop.wait()
