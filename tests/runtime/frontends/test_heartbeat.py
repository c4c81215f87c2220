"""When the engine's process takes a front end for hung."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from embedserve_runtime.frontends.context import build_request_series
from embedserve_runtime.frontends.engine_channel import (
    MAX_HEARTBEATS_OF_START,
    MAX_MISSED_HEARTBEATS,
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


def looks_until_hung(peer: Peer) -> int:
    looks = 1
    while not peer.is_hung():
        looks += 1
    return looks


async def test_a_process_that_starts_has_longer_than_one_that_has_started(peer: Peer) -> None:
    assert looks_until_hung(peer) == MAX_HEARTBEATS_OF_START + 1
    peer.receive(Hello())
    assert looks_until_hung(peer) == MAX_MISSED_HEARTBEATS + 1


@pytest.mark.parametrize("message", [Heartbeat(), MetricsPageRequest(1)])
async def test_any_message_shows_that_the_loop_of_a_front_end_runs(
    peer: Peer, message: FrontEndMessage
) -> None:
    peer.receive(Hello())
    for _ in range(3 * MAX_MISSED_HEARTBEATS):
        assert not peer.is_hung()
        peer.receive(message)
    assert looks_until_hung(peer) == MAX_MISSED_HEARTBEATS + 1
