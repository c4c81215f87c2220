"""How often a service is written while its pods come up: what is new at once, mere progress now and then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from embedserve_operator.apply.pod_client import PodClient
from embedserve_operator.cache.objects import ObjectCache
from embedserve_operator.kube.client import KubeClient
from embedserve_operator.kube.kinds import POD, RESOURCE
from embedserve_operator.kube.references import ObjectKey
from embedserve_operator.process.reconciler import Reconciler
from embedserve_operator.queue.work_queue import WorkQueue
from tests.operator.builders import hub_spec
from tests.operator.simulation import KEY, Simulation, reconciler_of, simulated

CHILDREN = 4
PAUSE_S = 2.0


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Watching:
    """One process of the operator that sees the simulation's cluster as its watches would."""

    simulation: Simulation
    reconciler: Reconciler
    store: ObjectCache
    queue: WorkQueue[ObjectKey]

    async def see(self, *kinds: str) -> int:
        """A pass after events about objects of these kinds; returns how many writes it made."""
        before = self.simulation.writes
        for kind in kinds:
            for received in self.simulation.of_kind(kind):
                self.store.put(kind, received)
        assert await self.reconciler.reconcile(KEY)
        return self.simulation.writes - before

    def pods_come_up(self) -> None:
        """Ready, and saying nothing of the model: what is made of that is not counted here."""
        self.simulation.settle()
        for pod in self.simulation.of_kind(POD):
            del pod["status"]["initContainerStatuses"]

    def read_condition(self, condition: str) -> tuple[str, str]:
        """Status and message."""
        received = self.simulation.condition(condition)
        assert received is not None
        return received["status"], received["message"]


@asynccontextmanager
async def watching(folder: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> AsyncIterator[Watching]:
    async with (
        simulated(folder, monkeypatch) as (simulation, operator),
        KubeClient(request_timeout=20) as kube,
        PodClient(message_timeout=5, check_timeout=5, port=operator.pod_port) as pod_client,
    ):
        store, queue = ObjectCache(), WorkQueue[ObjectKey](base_delay=1, max_delay=60)
        yield Watching(simulation, reconciler_of(kube, store, queue, pod_client, clock=clock), store, queue)


async def test_a_service_that_comes_up_is_written_six_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watching(tmp_path, monkeypatch, Clock()) as operator:
        operator.simulation.user_applies(hub_spec())
        assert await operator.see(RESOURCE) == CHILDREN + 1
        operator.pods_come_up()
        # The pod is ready before its Deployment counts it.
        assert await operator.see(POD) == 0
        assert await operator.see("Deployment", POD) == 1
        assert operator.read_condition("Ready") == ("True", "1 of 1 replicas are ready")
        assert operator.simulation.writes == CHILDREN + 2


async def test_progress_that_waited_is_written_when_the_pause_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    async with watching(tmp_path, monkeypatch, clock) as operator:
        operator.simulation.user_applies(hub_spec())
        await operator.see(RESOURCE)
        operator.pods_come_up()
        clock.now = PAUSE_S - 0.1
        assert await operator.see(POD) == 0
        assert operator.read_condition("Reconciling") == ("True", "0 of 1 replicas are ready")
        clock.now = PAUSE_S
        async with asyncio.timeout(60):
            assert await operator.queue.get(60) == KEY, "the pass that writes it is due"
        assert await operator.see() == 1
        assert operator.read_condition("Reconciling") == ("True", "1 of 1 replicas are ready")
