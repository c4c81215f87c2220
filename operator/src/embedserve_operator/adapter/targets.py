"""This module finds where the metrics of a pod can be read."""

from __future__ import annotations

from dataclasses import dataclass

from embedserve_operator.kube.objects import Received, dig, mappings, number, text


@dataclass(frozen=True, slots=True)
class ScrapeTarget:
    """Identifies a pod that exists and can be asked for its metrics."""

    uid: str
    name: str
    url: str
    is_ready: bool


def read_target(pod: Received) -> ScrapeTarget | None:
    """Return where to ask a pod; None for one that is ending, has ended or has not started."""
    address, port = text(pod, "status", "podIP"), _find_management_port(pod)
    ending = dig(pod, "metadata", "deletionTimestamp") is not None
    if ending or text(pod, "status", "phase") != "Running" or not address or not port:
        return None
    host = f"[{address}]" if ":" in address else address
    return ScrapeTarget(
        uid=text(pod, "metadata", "uid"),
        name=text(pod, "metadata", "name"),
        url=f"http://{host}:{port}/metrics",
        is_ready=any(
            condition.get("type") == "Ready" and condition.get("status") == "True"
            for condition in mappings(pod, "status", "conditions")
        ),
    )


def _find_management_port(pod: Received) -> int:
    for container in mappings(pod, "spec", "containers"):
        for port in mappings(container, "ports"):
            if text(port, "name") == "management":
                return number(port, "containerPort")
    return 0
