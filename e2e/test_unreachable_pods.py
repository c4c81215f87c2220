"""Pods whose management port the operator cannot reach, although the kubelet can: their services say why, and no
other service waits for them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from e2e.cluster.kubectl import Kubectl
from e2e.cluster.polling import wait_until
from e2e.cluster.process_table import list_commands
from e2e.cluster.shell import run
from e2e.conftest import MakeService
from e2e.services import TIMEOUT_S, Service, condition, hub_spec, is_ready, leader
from embedserve_operator.manifests.runtime_config import MANAGEMENT_PORT

SILENT_SERVICES = 16
"""Twice as many as the operator has workers."""
DROP = ("-j", "DROP")
RESET_REQUESTS = ("--tcp-flags", "PSH", "PSH", "-j", "REJECT", "--reject-with", "tcp-reset")
"""Connections are accepted and end with the first byte that is sent: so does the sidecar of a service mesh that takes
no connection without its certificate."""


@contextmanager
def filtered_management_port(kubectl: Kubectl, *rule: str) -> Iterator[None]:
    """Apply a rule of iptables to what the leading operator sends to the management port of pods."""
    mark = f"--identity={leader(kubectl)['metadata']['name']}".encode()
    process = next(number for number, words in list_commands() if mark in words)
    iptables = ["nsenter", f"--target={process}", "--net", "--", "iptables", "--wait"]
    words = ["OUTPUT", "-p", "tcp", "--dport", str(MANAGEMENT_PORT), *rule]
    run([*iptables, "-I", *words])
    try:
        yield
    finally:
        run([*iptables, "-D", *words])


def small_spec(**more: Any) -> dict[str, Any]:
    return hub_spec(resources={"requests": {"cpu": "50m"}}, **more)


def wait_pod_ready(service: Service) -> None:
    wait_until(
        f"the pod of {service.name} is ready",
        lambda: any(is_ready(pod) for pod in service.pods()),
        timeout_s=2 * TIMEOUT_S,
    )


def test_a_connection_that_is_reset_names_the_service_mesh_and_heals(
    kubectl: Kubectl, service: MakeService
) -> None:
    meshed = service("meshed")
    with filtered_management_port(kubectl, *RESET_REQUESTS):
        meshed.apply(small_spec())
        wait_pod_ready(meshed)
        message = meshed.wait_condition("SelfCheckFailed", "True", "SelfCheckFailed")["message"]
        assert "management port cannot be reached" in message
        assert "service mesh" in message
        assert "set the chart's mesh" in message
        meshed.wait_serving()
        assert len(meshed.embed("by its own certificate")) == 1, "what serves is not taken away"
        meshed.apply(small_spec(model={"pooling": "cls"}))
        progress = meshed.wait_condition("Reconciling", "True", "SelfCheckFailed")["message"]
        assert "set the chart's mesh" in progress
        assert meshed.wait_condition("Ready", "True", "PreviousRevisionServing")
    resource = meshed.wait_serving()
    assert condition(resource, "SelfCheckFailed") is None
    meshed.delete()


def test_sixteen_services_whose_pods_do_not_answer_leave_room_for_the_others(
    kubectl: Kubectl, service: MakeService
) -> None:
    bystander = service("bystander")
    bystander.apply(hub_spec(suspend=True))
    bystander.wait_condition("Ready", "True", "Suspended")
    silent = [service(f"silent-{number}") for number in range(SILENT_SERVICES)]
    with filtered_management_port(kubectl, *DROP):
        for embsvc in silent:
            embsvc.apply(small_spec())
        for embsvc in silent:
            wait_pod_ready(embsvc)
        began = time.monotonic()
        bystander.apply(hub_spec(suspend=True, service={"annotations": {"mark": "new"}}))
        wait_until("the other service has its annotation", lambda: has_mark(bystander), timeout_s=TIMEOUT_S)
        print(f"\nacted on after {time.monotonic() - began:.1f} s beside {SILENT_SERVICES} silent services")
        assert not any(is_proved(embsvc) for embsvc in silent), "none has answered meanwhile"
    for embsvc in silent:
        embsvc.wait_serving()
    for embsvc in (bystander, *silent):
        embsvc.delete()


def has_mark(service: Service) -> bool:
    return bool(service.child("services")["metadata"]["annotations"].get("mark") == "new")


def is_proved(service: Service) -> bool:
    """Return whether a pod of the service has told the operator what computes its vectors."""
    return "compute" in service.get()["status"].get("vectorSpace", {})
