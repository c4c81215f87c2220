"""Who leads: one Lease, and a loop of our own around it.

The loop of the client library keeps leading behind a half-open connection, among other defects. Here every
attempt is bounded, time is measured by the local monotonic clock alone, and a leader that could not renew for
`deadline` seconds is told so before the Lease ends for the others.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from embedserve_operator.errors import ApiError, ConflictError, LeaseLostError, NotFoundError
from embedserve_operator.kube import Kube
from embedserve_operator.settings import LeaseSettings
from embedserve_operator.wire import Manifest, Received, number, text

log = logging.getLogger(__name__)

_SHORTEST_PAUSE = 0.05
"""Between two looks at the Lease, seconds."""

Step = Literal["create", "take", "renew", "wait"]


@dataclass(frozen=True, slots=True)
class Sighting:
    """The Lease as it was last read, and when this process first saw it like that."""

    lease: Received | None
    since: float


def next_step(seen: Sighting, me: str, now: float) -> Step:
    """What a candidate should do about the Lease that it sees."""
    if seen.lease is None:
        return "create"
    holder = text(seen.lease, "spec", "holderIdentity")
    if holder == me:
        return "renew"
    # The holder's clock is not ours: a Lease has run out when it has not changed for its duration while we
    # looked.
    ran_out = now - seen.since >= number(seen.lease, "spec", "leaseDurationSeconds")
    return "take" if not holder or ran_out else "wait"


def sight(before: Sighting | None, lease: Received | None, now: float) -> Sighting:
    """A new sighting; one without a change goes on from when the change was first seen."""
    if before is not None and _version(before.lease) == _version(lease):
        return Sighting(lease, before.since)
    return Sighting(lease, now)


def written(lease: Received | None, settings: LeaseSettings, me: str, when: datetime, step: Step) -> Manifest:
    """The Lease as this process writes it to create, take or renew it."""
    stamp = when.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    transitions = number(lease, "spec", "leaseTransitions")
    metadata: Manifest = {"name": settings.name, "namespace": settings.namespace}
    if lease is not None:
        metadata["resourceVersion"] = text(lease, "metadata", "resourceVersion")
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": metadata,
        "spec": {
            "holderIdentity": me,
            "leaseDurationSeconds": int(settings.duration),
            "acquireTime": text(lease, "spec", "acquireTime") if step == "renew" else stamp,
            "renewTime": stamp,
            "leaseTransitions": transitions + (step == "take"),
        },
    }


def _version(lease: Received | None) -> str | None:
    return None if lease is None else text(lease, "metadata", "resourceVersion")


class Elector:
    """Wins the Lease, keeps it, gives it back."""

    def __init__(
        self,
        kube: Kube,
        settings: LeaseSettings,
        me: str,
        *,
        now: Callable[[], datetime],
        on_attempt: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        is_alive: Callable[[], bool] = lambda: True,
    ) -> None:
        """clock: of this machine, never set. is_alive: whether who works under the Lease does; without it nothing is
        renewed."""
        self._kube = kube
        self._settings = settings
        self._me = me
        self._now = now
        self._on_attempt = on_attempt
        self._clock = clock
        self._is_alive = is_alive
        self._seen: Sighting | None = None
        self._renewed = -math.inf

    async def win(self) -> None:
        """Return once this process leads."""
        said = ""
        while True:
            self._on_attempt()
            if await self._attempt(self._settings.retry):
                log.info("leading as %s", self._me)
                return
            holder = text(self._seen.lease, "spec", "holderIdentity") if self._seen is not None else ""
            if holder != said:
                log.info("%s leads; waiting", holder or "nobody known")
                said = holder
            await asyncio.sleep(self._until_next_look())

    def _until_next_look(self) -> float:
        """Seconds; shorter than otherwise when the Lease that another process holds is about to run out."""
        if self._seen is None:
            return self._settings.look
        left = self._seen.since + number(self._seen.lease, "spec", "leaseDurationSeconds") - self._clock()
        return min(max(left, _SHORTEST_PAUSE), self._settings.look)

    def leads(self) -> bool:
        """Whether this process holds the Lease, as far as its own clock tells."""
        return self._clock() < self._renewed + self._settings.deadline

    async def keep(self) -> None:
        """Renew until that fails, or nobody works under the Lease, for too long; ends only with LeaseLostError."""
        while True:
            await asyncio.sleep(self._settings.retry)
            self._on_attempt()
            left = self._renewed + self._settings.deadline - self._clock()
            if left <= 0:
                raise LeaseLostError(f"the Lease could not be renewed for {self._settings.deadline:g} s")
            if self._is_alive():
                await self._attempt(min(self._settings.retry, left))
            else:
                log.error("the Lease is not renewed: the operator hangs")
            if self._seen is not None and self._seen.lease is not None and not self._holds(self._seen):
                raise LeaseLostError(
                    f"{text(self._seen.lease, 'spec', 'holderIdentity')} has taken the Lease"
                )

    async def release(self) -> None:
        """Let the next candidate take over at once. Call only when all work has stopped."""
        if self._seen is None or self._seen.lease is None or not self._holds(self._seen):
            return
        lease = written(self._seen.lease, self._settings, "", self._now(), "renew")
        lease["spec"]["leaseDurationSeconds"] = 1
        try:
            async with asyncio.timeout(self._settings.retry):
                await self._kube.replace_lease(self._settings.namespace, lease)
        except (ApiError, TimeoutError) as error:
            log.info("the Lease was not given back and runs out by itself: %s", error)

    def _holds(self, seen: Sighting) -> bool:
        return text(seen.lease, "spec", "holderIdentity") == self._me

    async def _attempt(self, limit: float) -> bool:
        """Try once to hold the Lease; whatever fails, the next attempt reads it anew."""
        began = self._clock()
        try:
            async with asyncio.timeout(limit):
                return await self._try(began)
        except ConflictError:
            # Somebody else wrote first. Reading now tells at once who leads.
            log.info("another process wrote the Lease first")
        except NotFoundError:
            log.warning("somebody deleted the Lease; making it anew")
            self._seen = None
            return False
        except (ApiError, TimeoutError) as error:
            log.warning("the Lease could not be reached: %s", str(error) or "no answer in time")
            return False
        try:
            async with asyncio.timeout(limit):
                await self._read()
        except (ApiError, TimeoutError) as error:
            log.warning("the Lease could not be read: %s", str(error) or "no answer in time")
        return False

    async def _try(self, began: float) -> bool:
        seen = self._seen
        if seen is None or not self._holds(seen):
            seen = await self._read()
        step = next_step(seen, self._me, self._clock())
        if step == "wait":
            return False
        lease = written(seen.lease, self._settings, self._me, self._now(), step)
        write = self._kube.create_lease if step == "create" else self._kube.replace_lease
        got = await write(self._settings.namespace, lease)
        self._seen = Sighting(got, began)
        self._renewed = began
        return True

    async def _read(self) -> Sighting:
        lease = await self._kube.get_lease(self._settings.namespace, self._settings.name)
        self._seen = sight(self._seen, lease, self._clock())
        return self._seen
