"""The time after which the engine's process takes a front end for hung."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from embedserve_runtime.frontends.context import build_request_series
from embedserve_runtime.frontends.engine_channel import (
    MAX_MISSED_HEARTBEATS,
    MAX_MISSED_HEARTBEATS_AT_WORK,
    EngineChannel,
    Peer,
)
from embedserve_runtime.frontends.messages import FrontEndMessage, Heartbeat, Hello, MetricsPageRequest
from embedserve_runtime.telemetry.metrics import Metrics


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    channel = EngineChannel(Metrics(build_request_series()), lambda: b"the page")
    yield channel.add(b"http-0.1", on_hello=lambda _: None, on_ready=lambda: None, on_failure=lambda: None)
    channel.close()


def looks_until_hung(peer: Peer, *, works: bool) -> int:
    """Look at the peer until it counts as hung. works: whether it has taken CPU time at each look."""
    looks = 1
    while not peer.is_hung(cpu_seconds=looks if works else 0.0):
        looks += 1
    return looks


async def test_a_process_that_computes_has_longer_than_one_that_does_nothing(peer: Peer) -> None:
    assert looks_until_hung(peer, works=False) == MAX_MISSED_HEARTBEATS + 1
    peer.receive(Hello())
    assert looks_until_hung(peer, works=True) == MAX_MISSED_HEARTBEATS_AT_WORK + 1


@pytest.mark.parametrize("message", [Heartbeat(), MetricsPageRequest(1)])
async def test_any_message_shows_that_the_loop_of_a_front_end_runs(
    peer: Peer, message: FrontEndMessage
) -> None:
    peer.receive(Hello())
    for _ in range(3 * MAX_MISSED_HEARTBEATS):
        assert not peer.is_hung(cpu_seconds=0.0)
        peer.receive(message)
    assert looks_until_hung(peer, works=False) == MAX_MISSED_HEARTBEATS + 1


async def test_a_process_that_has_computed_for_a_while_is_not_hung_at_its_first_rest(peer: Peer) -> None:
    for look in range(2 * MAX_MISSED_HEARTBEATS):
        assert not peer.is_hung(cpu_seconds=look + 1.0)
    for _ in range(MAX_MISSED_HEARTBEATS):
        assert not peer.is_hung(cpu_seconds=2.0 * MAX_MISSED_HEARTBEATS)
    assert peer.is_hung(cpu_seconds=2.0 * MAX_MISSED_HEARTBEATS)
