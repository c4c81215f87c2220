"""`embedserve-operator adapter`: the process of one replica."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from aiohttp import web

from embedserve_operator.adapter.identity import (
    Identity,
    freshest,
    new_identity,
    server_context,
    use,
    valid_certificates,
)
from embedserve_operator.adapter.registration import API_SERVICE, bundle_in, is_ours
from embedserve_operator.adapter.scraper import Scraper
from embedserve_operator.adapter.server import Doorkeeper, Listener, MetricsApi, application
from embedserve_operator.adapter.trust import (
    AUTHENTICATION,
    client_rules,
    is_trusted,
    next_step,
    published,
)
from embedserve_operator.errors import ApiError, ConflictError
from embedserve_operator.health import Pulse, serve_health
from embedserve_operator.kube import Kube
from embedserve_operator.settings import AdapterSettings
from embedserve_operator.wire import dig
from embedserve_operator.world import ChildRef

log = logging.getLogger(__name__)

_KEPT_SHARE = 0.9
"""Of a period: what was kept from one look of the autoscaler must not meet its next."""
_SILENT_CHECKS = 30


class Keeper:
    """Keeps this replica trusted: its certificate, and the API server's."""

    def __init__(
        self,
        settings: AdapterSettings,
        kube: Kube,
        doorkeeper: Doorkeeper,
        listener: Listener,
        now: Callable[[], datetime],
    ) -> None:
        self._settings = settings
        self._kube = kube
        self._doorkeeper = doorkeeper
        self._listener = listener
        self._now = now
        self._current = self._made()
        self._next: Identity | None = None
        self.ready = False
        """Whether requests may be sent here."""

    async def check(self) -> None:
        """One look at everything that can change, and what follows from it. Raises ApiError."""
        await self._know_the_api_server()
        await self._publish()
        trusted = await self._trusted()
        step = next_step(
            due=self._now() >= self._current.renew_at,
            waiting=self._next.certificate if self._next is not None else None,
            trusted=trusted,
        )
        if step == "make":
            self._next = self._made()
            await self._publish()
        elif step == "switch" and self._next is not None and self._listener.context is not None:
            use(self._listener.context, self._next)
            self._current, self._next = self._next, None
            log.info("serving with a new certificate, until %s", self._current.renew_at)
            await self._publish()
        ready = self._listener.context is not None and is_trusted(
            self._current.certificate, published=True, trusted=trusted
        )
        if ready != self.ready:
            log.info(
                "ready" if ready else "not ready: the API service does not have this replica's certificate"
            )
        self.ready = ready

    async def _know_the_api_server(self) -> None:
        namespace, name = AUTHENTICATION
        rules = client_rules(await self._kube.get(namespace, ChildRef("ConfigMap", name)))
        if rules is None:
            log.warning("ConfigMap %s/%s does not say how the API server presents itself", namespace, name)
            return
        before, self._doorkeeper.rules = self._doorkeeper.rules, rules
        if before is None or before.authority != rules.authority:
            await self._listener.listen(server_context(self._current, rules.authority))

    async def _publish(self) -> None:
        place = self._settings.place
        ref = ChildRef("ConfigMap", place.name)
        found = await self._kube.get(place.namespace, ref)
        if found is None:
            raise ApiError(f"ConfigMap {place.namespace}/{place.name} does not exist; the chart makes it")
        mine = [self._current.certificate, *([self._next.certificate] if self._next is not None else [])]
        others = freshest(dig(found, "data") or {}, self._now())
        wanted = published(found, self._settings.identity, "".join(mine), others)
        if wanted is not None:
            # At the version that was read: another replica may publish at this moment.
            await self._kube.replace("ConfigMap", wanted)

    async def _trusted(self) -> frozenset[str] | None:
        """Certificates that the API server accepts; None while nothing of ours is registered."""
        found = await self._kube.get("", ChildRef("APIService", API_SERVICE))
        if found is None or not is_ours(found, self._settings.place):
            return None
        return frozenset(valid_certificates([bundle_in(found)], self._now()))

    def _made(self) -> Identity:
        life = timedelta(days=self._settings.certificate_days)
        return new_identity(self._settings.place.server_name, self._now(), life)


async def serve(settings: AdapterSettings) -> int:
    """Run until told to stop; returns the exit status."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    pulse = Pulse(loop.time)
    pulse.expect("certificates", _SILENT_CHECKS * settings.check_interval)
    keep = _KEPT_SHARE * settings.hpa_period
    doorkeeper = Doorkeeper()
    async with (
        Kube(request_timeout=settings.request_timeout) as kube,
        Scraper(keep=keep, timeout=settings.scrape_timeout, clock=loop.time) as scraper,
    ):
        runner = web.AppRunner(application(MetricsApi(kube, scraper, _now), doorkeeper), access_log=None)
        await runner.setup()
        keeper = Keeper(settings, kube, doorkeeper, Listener(runner, settings.port), _now)
        probes = await serve_health(pulse, settings.health_port, lambda: keeper.ready and not stop.is_set())
        try:
            await _keep_checking(keeper, pulse, stop, settings.check_interval)
            # Endpoints are told of the end first; until they have moved, requests still come.
            await asyncio.sleep(settings.drain)
        finally:
            await probes.cleanup()
            await runner.cleanup()
    return 0


async def _keep_checking(keeper: Keeper, pulse: Pulse, stop: asyncio.Event, interval: float) -> None:
    while not stop.is_set():
        pause = interval if keeper.ready else min(interval, 1.0)
        try:
            await keeper.check()
            pulse.beat("certificates")
        except ConflictError:
            log.debug("another replica was quicker to publish its certificate")
        except ApiError as error:
            # What is served goes on being served: the last known certificates hold.
            log.warning("certificates could not be checked: %s", error)
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await stop.wait()


def _now() -> datetime:
    return datetime.now(UTC)
