"""Finds what the watches have missed.

After a gap in a watch, kopf lists the objects again but does not report those that vanished meanwhile. So
after each new list, and from time to time, the operator lists the names and versions of what exists. The
same lists reveal a dead watch: an object whose version was listed a while ago has still not arrived.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress

from embedserve_operator.cache.caches import Caches
from embedserve_operator.cache.objects import KINDS
from embedserve_operator.errors import ApiError, RefusedError, WatchFailedError
from embedserve_operator.kube.client import KubeClient
from embedserve_operator.kube.kinds import CLUSTER_KINDS, OPTIONAL_KINDS
from embedserve_operator.kube.references import ObjectKey
from embedserve_operator.kube.views.objects import Object
from embedserve_operator.manifests.metadata import SERVICE_LABEL
from embedserve_operator.queue.work_queue import WorkQueue

log = logging.getLogger(__name__)

WATCHED_KINDS = tuple(kind for kind in KINDS if kind not in OPTIONAL_KINDS)


class Audit:
    """Compares the caches with what exists."""

    def __init__(
        self,
        kube: KubeClient,
        caches: Caches,
        queue: WorkQueue[ObjectKey],
        *,
        watches_nodes: bool,
        on_live_watch: Callable[[str], None],
    ) -> None:
        self._kube = kube
        self._objects = caches.objects
        self._cluster = caches.cluster
        self._queue = queue
        self._cluster_kinds = CLUSTER_KINDS if watches_nodes else ()
        self._on_live_watch = on_live_watch
        self._listed: dict[str, Mapping[str, str]] = {}

    async def fill(self) -> None:
        """Fill the empty caches with what exists; every resource then gets a pass."""
        for kind in WATCHED_KINDS:
            async for page in self._kube.list_pages(kind, SERVICE_LABEL):
                for received in page:
                    self._objects.put(kind, received)
        for kind in self._cluster_kinds:
            for received in await self._kube.list_labelled(kind, ""):
                self._cluster.put(kind, received)
        await self.refresh_unwatched()
        self._enqueue_all()

    async def run(self, interval: float, relisted: asyncio.Event) -> None:
        """Audit after each new list and every `interval` seconds; ends only with WatchFailedError."""
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
                await self.run_once(regular=regular)
            except RefusedError as error:
                raise WatchFailedError(f"what is watched can no longer be listed: {error}") from error
            except ApiError as error:
                log.warning("the caches could not be checked: %s", error)

    async def run_once(self, *, regular: bool = True) -> None:
        """Compare everything once; every resource then gets a pass.

        Only what was listed in a regular audit has had enough time to arrive before the next one.
        """
        for kind in WATCHED_KINDS:
            await self._check_kind(kind, regular=regular)
        await self.refresh_unwatched()
        for kind in self._cluster_kinds:
            received_objects = await self._kube.list_labelled(kind, "")
            self._cluster.keep_only(
                kind, frozenset(Object.parse(received).metadata.name for received in received_objects)
            )
        self._enqueue_all()

    async def refresh_unwatched(self) -> None:
        """List the kinds that a cluster may lack: which of them can be made, and which objects of them are
        ours.
        """
        self._cluster.set_optional_kinds(
            frozenset([kind for kind in OPTIONAL_KINDS if await self._refresh_kind(kind)])
        )

    async def _refresh_kind(self, kind: str) -> bool:
        """List a kind that is not watched; return whether objects of it can be made."""
        is_served = await self._kube.serves(kind)
        received_objects = []
        if is_served:
            try:
                received_objects = await self._kube.list_labelled(kind, SERVICE_LABEL)
            except RefusedError as error:
                log.warning("%ss are not made: %s", kind, error)
                is_served = False
        known_before = self._objects.list_uids(kind)
        for received in received_objects:
            self._objects.put(kind, received)
        existing = frozenset(Object.parse(received).metadata.uid for received in received_objects)
        self._objects.forget_missing(kind, existing, known_before)
        return is_served

    def _enqueue_all(self) -> None:
        for key in self._objects.list_keys():
            self._queue.add_low_priority(key)

    async def _check_kind(self, kind: str, *, regular: bool) -> None:
        known_before = self._objects.list_uids(kind)
        versions = await self._kube.list_versions(kind, SERVICE_LABEL)
        if regular:
            if self._objects.is_lagging(kind, self._listed.get(kind, {}), versions):
                log.error("the watch of %s does not tell what has been listed before", kind)
            else:
                self._on_live_watch(kind)
            self._listed[kind] = versions
        for key in self._objects.forget_missing(kind, frozenset(versions), known_before):
            log.info("%s: a %s is gone and no event told so", key, kind)
            self._queue.add(key)
