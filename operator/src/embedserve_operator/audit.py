"""Finds what the watches did not tell.

After a gap in a watch kopf lists anew, but says nothing of objects that vanished meanwhile. So after each new list, and
from time to time, the operator asks for the names and versions of what exists. The same lists show a watch that is
dead: an object whose version was listed a while ago and has still not arrived.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress

from embedserve_operator.errors import ApiError, RefusedError
from embedserve_operator.kinds import CLUSTER_KINDS, OPTIONAL_KINDS
from embedserve_operator.kube import Kube
from embedserve_operator.queue import WorkQueue
from embedserve_operator.specs.metadata import SERVICE_LABEL
from embedserve_operator.store import KINDS, ClusterStore, Store
from embedserve_operator.wire import text
from embedserve_operator.world import Key

log = logging.getLogger(__name__)

WATCHED_KINDS = tuple(kind for kind in KINDS if kind not in OPTIONAL_KINDS)


class Audit:
    """Compares the caches with what exists."""

    def __init__(
        self,
        kube: Kube,
        store: Store,
        cluster: ClusterStore,
        queue: WorkQueue[Key],
        *,
        watches_nodes: bool,
        on_live_watch: Callable[[str], None],
    ) -> None:
        self._kube = kube
        self._store = store
        self._cluster = cluster
        self._queue = queue
        self._cluster_kinds = CLUSTER_KINDS if watches_nodes else ()
        self._on_live_watch = on_live_watch
        self._listed: dict[str, Mapping[str, str]] = {}

    async def fill(self) -> None:
        """Fill empty caches with what exists; every resource gets a pass after it."""
        for kind in WATCHED_KINDS:
            async for page in self._kube.pages(kind, SERVICE_LABEL):
                for one in page:
                    self._store.put(kind, one)
        for kind in self._cluster_kinds:
            for one in await self._kube.list_labelled(kind, ""):
                self._cluster.put(kind, one)
        await self.refresh_unwatched()
        self._look_at_all()

    async def run(self, interval: float, relisted: asyncio.Event) -> None:
        """Audit after each new list and every `interval` seconds, for ever."""
        clock = asyncio.get_running_loop().time
        due = clock() + interval
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await relisted.wait()
            relisted.clear()
            regular = clock() >= due
            if regular:
                due = clock() + interval
            try:
                await self.once(regular=regular)
            except ApiError as error:
                log.warning("the caches could not be checked: %s", error)

    async def once(self, *, regular: bool = True) -> None:
        """One comparison of everything; every resource gets a pass after it. Only what was listed in a regular one has
        had the time to arrive before the next."""
        for kind in WATCHED_KINDS:
            await self._check(kind, regular=regular)
        await self.refresh_unwatched()
        for kind in self._cluster_kinds:
            found = await self._kube.list_labelled(kind, "")
            self._cluster.keep_only(kind, frozenset(text(one, "metadata", "name") for one in found))
        self._look_at_all()

    async def refresh_unwatched(self) -> None:
        """Kinds that a cluster may lack: which of them can be made, and those that are ours."""
        self._cluster.have_optional_kinds(
            frozenset([kind for kind in OPTIONAL_KINDS if await self._refresh(kind)])
        )

    async def _refresh(self, kind: str) -> bool:
        """Whether objects of the kind can be made."""
        there = await self._kube.serves(kind)
        found = []
        if there:
            try:
                found = await self._kube.list_labelled(kind, SERVICE_LABEL)
            except RefusedError as error:
                log.warning("%ss are not made: %s", kind, error)
                there = False
        known = self._store.uids(kind)
        for one in found:
            self._store.put(kind, one)
        existing = frozenset(text(one, "metadata", "uid") for one in found)
        self._store.forget_missing(kind, existing, known)
        return there

    def _look_at_all(self) -> None:
        for key in self._store.resources():
            self._queue.add_behind(key)

    async def _check(self, kind: str, *, regular: bool) -> None:
        known = self._store.uids(kind)
        versions = await self._kube.existing_versions(kind, SERVICE_LABEL)
        if regular:
            if self._store.lags(kind, self._listed.get(kind, {}), versions):
                log.error("the watch of %s does not tell what has been listed before", kind)
            else:
                self._on_live_watch(kind)
            self._listed[kind] = versions
        for key in self._store.forget_missing(kind, frozenset(versions), known):
            log.info("%s: a %s is gone and no event told so", key, kind)
            self._queue.add(key)
