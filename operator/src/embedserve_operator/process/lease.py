"""Elects the leader by one Lease, with a loop of its own.

The loop of the client library stays leader over a half-open connection, among other defects. Here every
attempt is bounded, time is measured by the local monotonic clock alone, and a leader that could not renew
the Lease for `deadline` seconds is told so before the Lease ends for the others.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from embedserve_operator.clock import EPOCH, Clock
from embedserve_operator.errors import ApiError, ConflictError, LeaseLostError, NotFoundError
from embedserve_operator.kube.client import KubeClient
from embedserve_operator.kube.objects import Manifest
from embedserve_operator.kube.views.cluster import Lease, LeaseSpec
from embedserve_operator.settings import LeaseSettings

log = logging.getLogger(__name__)

_TICK = timedelta(microseconds=1)
_MIN_PAUSE = 0.05
"""The shortest pause between two looks at the Lease, in seconds."""

LeaseStep = Literal["create", "take", "renew", "wait"]


@dataclass(frozen=True, slots=True)
class LeaseObservation:
    """The Lease as it was last read, and when this process first saw it like that."""

    lease: Lease | None
    since: float

    @property
    def holder(self) -> str:
        """Return the identity of the holder of the Lease; empty when nobody holds it."""
        return self.lease.spec.holder_identity if self.lease is not None else ""

    @property
    def duration(self) -> int:
        """Return the seconds that the Lease lasts; 0 when there is none."""
        return self.lease.spec.lease_duration_seconds if self.lease is not None else 0


def choose_step(observation: LeaseObservation, me: str, now: float) -> LeaseStep:
    """Return what a candidate should do about the Lease that it sees."""
    if observation.lease is None:
        return "create"
    if observation.holder == me:
        return "renew"
    # The holder's clock is not ours: a Lease has run out when it has not changed for its duration while we
    # looked.
    ran_out = now - observation.since >= observation.duration
    return "take" if not observation.holder or ran_out else "wait"


def observe_lease(before: LeaseObservation | None, lease: Lease | None, now: float) -> LeaseObservation:
    """Return a new observation. One without a change keeps the time at which the change was first seen."""
    if before is not None and _read_version(before.lease) == _read_version(lease):
        return LeaseObservation(lease, before.since)
    return LeaseObservation(lease, now)


def build_lease(
    lease: Lease | None, settings: LeaseSettings, me: str, when: datetime, step: LeaseStep
) -> Manifest:
    """Return the Lease as this process writes it in order to create, take or renew it."""
    stamp = _format_time(when)
    metadata: Manifest = {"name": settings.name, "namespace": settings.namespace}
    if lease is not None:
        metadata["resourceVersion"] = lease.metadata.resource_version
    before = lease.spec if lease is not None else LeaseSpec.parse({})
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": metadata,
        "spec": {
            "holderIdentity": me,
            "leaseDurationSeconds": int(settings.duration),
            "acquireTime": _choose_acquire_time(before, when, step),
            "renewTime": stamp,
            "leaseTransitions": before.lease_transitions + (step == "take"),
        },
    }


def _choose_acquire_time(before: LeaseSpec, when: datetime, step: LeaseStep) -> str:
    """Return since when the holder leads: later for each leader than for the one before, whatever their clocks say."""
    acquired_at = _parse_time(before.acquire_time)
    if acquired_at is None:
        return _format_time(when)
    return before.acquire_time if step == "renew" else _format_time(max(when, acquired_at + _TICK))


def _format_time(when: datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _parse_time(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None


def compute_generation(lease: Lease | None) -> int:
    """Return a number that is greater for each later leader: since when it leads, in microseconds since 1970; 0 where
    that is not known.

    The transitions that a Lease counts begin anew when somebody deletes it; time does not.
    """
    acquired = _parse_time(lease.spec.acquire_time) if lease is not None else None
    return (acquired - EPOCH) // _TICK if acquired is not None else 0


def _read_version(lease: Lease | None) -> str | None:
    return None if lease is None else lease.metadata.resource_version


@dataclass(frozen=True, slots=True)
class Candidate:
    """The process that wants to lead."""

    identity: str
    """The name under which it holds the Lease."""
    on_attempt: Callable[[], None] = lambda: None
    """Called before each look at the Lease."""
    is_alive: Callable[[], bool] = lambda: True
    """Says whether what works under the Lease is alive; otherwise nothing is renewed."""


class LeaderElector:
    """Acquires, renews and releases the Lease."""

    def __init__(self, kube: KubeClient, settings: LeaseSettings, candidate: Candidate, clock: Clock) -> None:
        self._kube = kube
        self._settings = settings
        self._candidate = candidate
        self._me = candidate.identity
        self._monotonic = clock.monotonic
        self._now = clock.now
        self._observation: LeaseObservation | None = None
        self._renewed = -math.inf

    async def acquire(self) -> None:
        """Return once this process leads."""
        logged_holder = ""
        while True:
            self._candidate.on_attempt()
            if await self._try_to_hold(self._settings.deadline):
                log.info("leading as %s", self._me)
                return
            holder = self._observation.holder if self._observation is not None else ""
            if holder != logged_holder:
                log.info("%s leads; waiting", holder or "nobody known")
                logged_holder = holder
            await asyncio.sleep(self._compute_pause())

    def _compute_pause(self) -> float:
        """Return the seconds until the next look; fewer when the Lease that another process holds is about to
        run out.
        """
        if self._observation is None:
            return self._settings.poll_interval
        remaining = self._observation.since + self._observation.duration - self._monotonic()
        return min(max(remaining, _MIN_PAUSE), self._settings.poll_interval)

    def is_leader(self) -> bool:
        """Return whether this process holds the Lease, as far as its own clock can tell."""
        return self._monotonic() < self._renewed + self._settings.deadline

    def get_generation(self) -> int:
        """Return a number that is greater for each later leader."""
        return compute_generation(self._observation.lease if self._observation is not None else None)

    async def renew(self) -> None:
        """Renew the Lease until that fails for too long, or the process under it is not alive; ends only with
        LeaseLostError.
        """
        began = self._renewed
        while True:
            # Where the API server is slow, the next attempt follows at once.
            await asyncio.sleep(max(0.0, began + self._settings.retry - self._monotonic()))
            began = self._monotonic()
            self._candidate.on_attempt()
            remaining = self._renewed + self._settings.deadline - self._monotonic()
            if remaining <= 0:
                raise LeaseLostError(f"the Lease could not be renewed for {self._settings.deadline:g} s")
            if self._candidate.is_alive():
                await self._try_to_hold(min(self._settings.attempt_timeout, remaining))
            else:
                log.error("the Lease is not renewed: the operator hangs")
            if (
                self._observation is not None
                and self._observation.lease is not None
                and not self._is_holder(self._observation)
            ):
                raise LeaseLostError(f"{self._observation.holder} has taken the Lease")

    async def release(self) -> None:
        """Let the next candidate take over at once. Call this only when all work has stopped.

        A Lease whose deadline has passed is left to run out: the attempt to write it, over a connection that
        has fallen silent, would keep this process alive until the next one leads.
        """
        observation = self._observation
        if (
            observation is None
            or observation.lease is None
            or not self._is_holder(observation)
            or not self.is_leader()
        ):
            return
        lease = build_lease(observation.lease, self._settings, "", self._now(), "renew")
        lease["spec"]["leaseDurationSeconds"] = 1
        try:
            async with asyncio.timeout(self._settings.attempt_timeout):
                await self._kube.replace_lease(self._settings.namespace, lease)
        except (ApiError, TimeoutError) as error:
            log.info("the Lease was not given back and runs out by itself: %s", error)

    def _is_holder(self, observation: LeaseObservation) -> bool:
        return observation.holder == self._me

    async def _try_to_hold(self, limit: float) -> bool:
        """Try once to hold the Lease, for at most `limit` seconds; whatever fails, the next attempt reads it again."""
        try:
            async with asyncio.timeout(limit):
                return await self._write_lease()
        except ConflictError:
            # Somebody else wrote first. Reading the Lease now shows at once who leads.
            log.info("another process wrote the Lease first")
        except NotFoundError:
            log.warning("somebody deleted the Lease; making it anew")
            self._observation = None
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

    async def _write_lease(self) -> bool:
        observation = self._observation
        if observation is None or not self._is_holder(observation):
            observation = await self._read()
        step = choose_step(observation, self._me, self._monotonic())
        if step == "wait":
            return False
        lease = build_lease(observation.lease, self._settings, self._me, self._now(), step)
        write = self._kube.create_lease if step == "create" else self._kube.replace_lease
        # Others count from when they see the write, which is later.
        sent_at = self._monotonic()
        written = await write(self._settings.namespace, lease)
        self._observation = LeaseObservation(written, sent_at)
        self._renewed = sent_at
        return True

    async def _read(self) -> LeaseObservation:
        lease = await self._kube.get_lease(self._settings.namespace, self._settings.name)
        self._observation = observe_lease(self._observation, lease, self._monotonic())
        return self._observation
