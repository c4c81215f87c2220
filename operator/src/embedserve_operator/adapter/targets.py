"""Finds where the metrics of a pod can be read."""

from __future__ import annotations

from dataclasses import dataclass

from embedserve_operator.kube.views.pods import Pod


@dataclass(frozen=True, slots=True)
class ScrapeTarget:
    """A pod that exists and can be asked for its metrics."""

    uid: str
    name: str
    url: str
    is_ready: bool


def read_target(pod: Pod) -> ScrapeTarget | None:
    """Return where to ask a pod; None for one that is ending, has ended or has not started."""
    address, port = pod.status.pod_ip, _find_management_port(pod)
    if pod.metadata.is_being_deleted or pod.status.phase != "Running" or not address or not port:
        return None
    host = f"[{address}]" if ":" in address else address
    return ScrapeTarget(
        uid=pod.metadata.uid,
        name=pod.metadata.name,
        url=f"http://{host}:{port}/metrics",
        is_ready=pod.is_ready,
    )


def _find_management_port(pod: Pod) -> int:
    ports = (port for container in pod.spec.containers for port in container.ports)
    return next((port.container_port for port in ports if port.name == "management"), 0)
