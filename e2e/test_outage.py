"""The API server is away, and comes back: nothing is lost, nothing is done twice."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

from e2e.cluster.kubectl import Kubectl
from e2e.cluster.lifecycle import Cluster
from e2e.cluster.polling import wait_until
from e2e.cluster.process_table import list_commands
from e2e.conftest import MakeService
from e2e.services import TIMEOUT_S, hub_spec, leader

AWAY_S = 60
"""Longer than a leader may be without its Lease."""


def _api_server() -> int:
    (number,) = (number for number, words in list_commands() if words[0].endswith(b"kube-apiserver"))
    return number


@contextmanager
def stopped_api_server(cluster: Cluster) -> Iterator[None]:
    """Connections stay open and nothing answers: what a cut network looks like."""
    number = _api_server()
    os.kill(number, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(number, signal.SIGCONT)
        kubectl = cluster.kubectl
        wait_until(
            "the API server answers",
            lambda: kubectl.attempt("get", "--raw", "/readyz", timeout_s=10).stdout == "ok",
            timeout_s=TIMEOUT_S,
        )


def test_a_silent_api_server_costs_no_change_and_no_pod(
    cluster: Cluster, kubectl: Kubectl, service: MakeService
) -> None:
    embsvc = service("kept")
    embsvc.apply(hub_spec())
    embsvc.wait_serving()
    before = [pod["metadata"]["uid"] for pod in embsvc.pods()]
    # A change that the operator has not acted upon when the silence begins.
    embsvc.apply(hub_spec(replicas=2))
    with stopped_api_server(cluster):
        end = time.monotonic() + AWAY_S
        wait_until("the silence has lasted", lambda: time.monotonic() >= end, timeout_s=AWAY_S + 5)
    resource = embsvc.wait_serving()
    assert resource["status"]["readyReplicas"] == 2
    assert set(before) <= {pod["metadata"]["uid"] for pod in embsvc.pods()}
    assert leader(kubectl)
    embsvc.delete()
