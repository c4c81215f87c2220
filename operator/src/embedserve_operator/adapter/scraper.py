"""Asks pods what their metrics are: in parallel, each within a deadline, and once for all who ask in one period."""

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

from embedserve_operator.adapter.pages import Page, read_page
from embedserve_operator.adapter.targets import Target

log = logging.getLogger(__name__)

_AT_ONCE = 64
_ROUNDS = 2
"""Time-outs that a question waits for: as long as so many times the pods that are asked at once are silent."""
_BUFFER = 2**16
_LONGEST_PAGE = 2**20
_MOST_KEPT = 20_000


@dataclass(frozen=True, slots=True)
class _Kept:
    page: Page | None
    """None when the pod did not answer."""
    until: float


class Scraper:
    """Keeps what pods said for a while. Use as an asynchronous context manager."""

    def __init__(self, *, keep: float, timeout: float, clock: Callable[[], float]) -> None:
        self._keep = keep
        self._timeout = timeout
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._clock = clock
        self._kept: dict[str, _Kept] = {}
        self._running: dict[str, asyncio.Task[Page | None]] = {}

    async def __aenter__(self) -> Self:
        # A connection each time: kept ones, of all pods, would need more memory than all the rest.
        connector = aiohttp.TCPConnector(limit=0, force_close=True, use_dns_cache=False)
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=self._timeout),
            read_bufsize=_BUFFER,
            auto_decompress=False,
            # Straight to the pods, whatever proxy the environment names.
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

    async def read(self, targets: Sequence[Target]) -> dict[str, Page]:
        """Pages by UID, of the pods that answered in time. Many silent ones delay the others, for a while."""
        self._forget_old()
        pages: dict[str, Page] = {}
        waiting: dict[str, asyncio.Task[Page | None]] = {}
        for target in targets:
            kept = self._kept.get(target.uid)
            if kept is None:
                waiting[target.uid] = self._ask(target)
            elif kept.page is not None:
                pages[target.uid] = kept.page
        if waiting:
            # Not cancelled with the one who asked: others may wait for the same pods.
            await asyncio.wait(waiting.values(), timeout=_ROUNDS * self._timeout)
        for uid, task in waiting.items():
            if task.done() and (page := task.result()) is not None:
                pages[uid] = page
        return pages

    def _ask(self, target: Target) -> asyncio.Task[Page | None]:
        task = self._running.get(target.uid)
        if task is None:
            task = asyncio.create_task(self._scrape(target), name=f"scrape {target.name}")
            self._running[target.uid] = task
            task.add_done_callback(lambda _: self._running.pop(target.uid, None))
        return task

    async def _scrape(self, target: Target) -> Page | None:
        page = None
        try:
            async with self._places:
                page = await self._page(target.url)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            log.debug("%s at %s: %r", target.name, target.url, error)
        self._kept[target.uid] = _Kept(page, self._clock() + self._keep)
        return page

    async def _page(self, url: str) -> Page | None:
        async with self._session.get(url, allow_redirects=False) as response:
            if response.status != HTTPStatus.OK:
                return None
            content = await response.content.read(_LONGEST_PAGE)
            while not response.content.at_eof():
                if len(content) >= _LONGEST_PAGE:
                    return None
                content += await response.content.read(_LONGEST_PAGE - len(content))
            return read_page(content)

    def _forget_old(self) -> None:
        now = self._clock()
        for uid in [uid for uid, kept in self._kept.items() if kept.until <= now]:
            del self._kept[uid]
        while len(self._kept) > _MOST_KEPT:
            with suppress(KeyError):
                del self._kept[next(iter(self._kept))]
