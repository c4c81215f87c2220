"""Asks pods for their metrics: in parallel, each within a deadline, and once for all queries of a
period.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from types import TracebackType
from typing import Self

import aiohttp

from embedserve_operator.adapter.metrics_page import MetricsPage, read_page
from embedserve_operator.adapter.targets import ScrapeTarget

log = logging.getLogger(__name__)

_MAX_CONCURRENT = 64
_MAX_ROUNDS = 2
"""Number of time-outs of a request to a pod after which a query waits no longer."""
_BUFFER_BYTES = 2**16
_MAX_PAGE_BYTES = 2**20
_MAX_CACHED_PAGES = 20_000


@dataclass(frozen=True, slots=True)
class _CachedPage:
    page: MetricsPage | None
    """The page; None when the pod did not answer."""
    until: float


class Scraper:
    """Reads metrics pages and caches them for a while. Use it as an asynchronous context manager."""

    def __init__(self, *, cache_seconds: float, timeout: float, monotonic: Callable[[], float]) -> None:
        self._cache_seconds = cache_seconds
        self._timeout = timeout
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT)
        self._monotonic = monotonic
        self._cached: dict[str, _CachedPage] = {}
        self._running: dict[str, asyncio.Task[MetricsPage | None]] = {}

    async def __aenter__(self) -> Self:
        # Each request gets its own connection: open ones to all pods would need more memory than everything else.
        connector = aiohttp.TCPConnector(limit=0, force_close=True, use_dns_cache=False)
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=self._timeout),
            read_bufsize=_BUFFER_BYTES,
            auto_decompress=False,
            # No proxy is used, whatever the environment says.
            trust_env=False,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
        await self._session.close()

    async def scrape(self, targets: Sequence[ScrapeTarget]) -> dict[str, MetricsPage]:
        """Return the pages of the pods that answered in time, by UID.

        Many silent pods delay the others for a while.
        """
        self._drop_expired()
        pages: dict[str, MetricsPage] = {}
        waiting: dict[str, asyncio.Task[MetricsPage | None]] = {}
        for target in targets:
            cached = self._cached.get(target.uid)
            if cached is None:
                waiting[target.uid] = self._start_scrape(target)
            elif cached.page is not None:
                pages[target.uid] = cached.page
        if waiting:
            # The tasks outlive this query, since others may wait for the same pods.
            await asyncio.wait(waiting.values(), timeout=_MAX_ROUNDS * self._timeout)
        for uid, task in waiting.items():
            if task.done() and (page := task.result()) is not None:
                pages[uid] = page
        return pages

    def _start_scrape(self, target: ScrapeTarget) -> asyncio.Task[MetricsPage | None]:
        task = self._running.get(target.uid)
        if task is None:
            task = asyncio.create_task(self._scrape(target), name=f"scrape {target.name}")
            self._running[target.uid] = task
            task.add_done_callback(lambda _: self._running.pop(target.uid, None))
        return task

    async def _scrape(self, target: ScrapeTarget) -> MetricsPage | None:
        page = None
        try:
            async with self._slots:
                page = await self._fetch_page(target.url)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            log.debug("%s at %s: %r", target.name, target.url, error)
        self._cached[target.uid] = _CachedPage(page, self._monotonic() + self._cache_seconds)
        return page

    async def _fetch_page(self, url: str) -> MetricsPage | None:
        async with self._session.get(url, allow_redirects=False) as response:
            if response.status != HTTPStatus.OK:
                return None
            content = await response.content.read(_MAX_PAGE_BYTES)
            while not response.content.at_eof():
                if len(content) >= _MAX_PAGE_BYTES:
                    return None
                content += await response.content.read(_MAX_PAGE_BYTES - len(content))
            return read_page(content)

    def _drop_expired(self) -> None:
        now = self._monotonic()
        for uid in [uid for uid, cached in self._cached.items() if cached.until <= now]:
            del self._cached[uid]
        while len(self._cached) > _MAX_CACHED_PAGES:
            with suppress(KeyError):
                del self._cached[next(iter(self._cached))]
