"""The second operator takes over, in time, and never beside the first. `pytest -s` prints the figures."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from e2e.cluster.kubectl import Kubectl
from e2e.cluster.lifecycle import Cluster
from e2e.cluster.polling import wait_until
from e2e.conftest import MakeService
from e2e.fault_proxy import FaultProxy
from e2e.outside import Operator, operators
from e2e.services import TIMEOUT_S, hub_spec


@pytest.fixture
def pair(
    cluster: Cluster, no_operator: None, namespace: str, kubectl: Kubectl, tmp_path: Path
) -> Iterator[tuple[Operator, Operator]]:
    """One that leads and one that waits."""
    with ExitStack() as stack:
        proxies = [stack.enter_context(FaultProxy(cluster.layout).running()) for _ in range(2)]
        first, second = stack.enter_context(operators(proxies, namespace, tmp_path, restarts=False))
        yield first, second
    kubectl("delete", "lease", "outside", "--namespace", namespace, "--ignore-not-found")


def tell(what: str, seconds: float) -> None:
    print(f"\ntakeover after {what}: {seconds:.2f} s")


def test_after_a_kill(pair: tuple[Operator, Operator]) -> None:
    first, second = pair
    killed = first.send(signal.SIGKILL)
    tell("SIGKILL", second.wait_leading().at - killed)


def test_after_an_orderly_end(pair: tuple[Operator, Operator]) -> None:
    first, second = pair
    signalled_at = first.send(signal.SIGTERM)
    took = second.wait_leading().at
    ended, code = first.wait_ended()
    tell("SIGTERM", took - signalled_at)
    assert code == 0
    last = [request.at for request in first.proxy.passed if request.is_write and not request.is_of_lease]
    assert all(at < took for at in last)
    print(f"the first process ended {ended - signalled_at:.2f} s after SIGTERM")


def test_behind_a_half_open_connection_the_first_has_ended_before_the_second_begins(
    pair: tuple[Operator, Operator],
) -> None:
    first, second = pair
    first.proxy.fault = "Silent"
    last = first.proxy.passed[-1].at
    took = second.wait_leading().at
    ended, code = first.wait_ended()
    tell("the last answer over a connection that fell silent", took - last)
    print(f"the first process ended {took - ended:.2f} s before")
    assert ended < took
    assert code == 1


def test_one_that_was_stopped_and_goes_on_writes_nothing_more(
    pair: tuple[Operator, Operator], service: MakeService
) -> None:
    """As a machine that was suspended: it wakes up with work in hand and believes that it leads."""
    first, second = pair
    paused = service("paused")
    first.send(signal.SIGSTOP)
    paused.apply(hub_spec(suspend=True))
    took = second.wait_leading().at
    first.send(signal.SIGCONT)
    _, code = first.wait_ended()
    assert code == 1
    late = [
        request
        for request in first.proxy.passed
        if request.is_write and request.at > took and request.status < 300
    ]
    assert late == []
    paused.wait_condition("Ready", "True", "Suspended")
    wait_until("its children are there", lambda: len(paused.children()) >= 4, timeout_s=TIMEOUT_S)
    paused.delete()
