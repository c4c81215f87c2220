"""Finds out which of the configured namespaces can be watched.

One that was deleted, or in which the operator has no rights, must not keep it from working in the others. Watches
cannot be added to a running process, nor taken away: it ends, and a new one begins with the namespaces that can be
watched by then.
"""

from __future__ import annotations

import asyncio
import logging

from embedserve_operator.cache.audit import WATCHED_KINDS
from embedserve_operator.errors import ApiError, RefusedError, WatchFailedError
from embedserve_operator.kube.client import KubeClient

log = logging.getLogger(__name__)


class WatchedNamespaces:
    """The namespaces that are watched.

    `configured` are the configured namespaces; none stands for all that there are.
    """

    def __init__(self, kube: KubeClient, configured: tuple[str, ...]) -> None:
        self._kube = kube
        self._left_out: tuple[str, ...] = ()
        self.watched = configured

    async def choose(self) -> None:
        """Leave out the namespaces that cannot be watched. RefusedError says that there is no other."""
        refusals = {name: await self._find_refusal(name) for name in self.watched}
        readable = tuple(name for name, refusal in refusals.items() if refusal is None)
        for name, refusal in refusals.items():
            if refusal is not None and not readable:
                raise refusal
            if refusal is not None:
                log.error("namespace %s is not watched, the others are: %s", name, refusal)
        self._left_out = tuple(name for name in self.watched if name not in readable)
        self.watched = readable
        self._kube.restrict_to_namespaces(readable)

    async def run(self, interval: float) -> None:
        """Look every `interval` seconds for namespaces that could not be watched and now can; ends only with
        WatchFailedError.
        """
        while True:
            await asyncio.sleep(interval)
            for name in self._left_out:
                try:
                    refusal = await self._find_refusal(name)
                except ApiError as error:
                    log.warning("namespace %s could not be looked at: %s", name, error)
                    continue
                if refusal is None:
                    raise WatchFailedError(f"namespace {name} can be watched now")

    async def _find_refusal(self, namespace: str) -> RefusedError | None:
        for kind in WATCHED_KINDS:
            try:
                await self._kube.probe_list(kind, namespace)
            except RefusedError as error:
                return error
        return None
