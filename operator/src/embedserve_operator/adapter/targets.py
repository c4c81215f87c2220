"""Pods as the API server lists them -> where to ask them."""

from __future__ import annotations

from dataclasses import dataclass

from embedserve_operator.wire import Received, dig, mappings, number, text


@dataclass(frozen=True, slots=True)
class Target:
    """A pod that exists and can be asked."""

    uid: str
    name: str
    url: str
    ready: bool


def target_of(pod: Received) -> Target | None:
    """Where to ask a pod; None for one that is ending, has ended or has not begun."""
    address, port = text(pod, "status", "podIP"), _management_port(pod)
    ending = dig(pod, "metadata", "deletionTimestamp") is not None
    if ending or text(pod, "status", "phase") != "Running" or not address or not port:
        return None
    host = f"[{address}]" if ":" in address else address
    return Target(
        uid=text(pod, "metadata", "uid"),
        name=text(pod, "metadata", "name"),
        url=f"http://{host}:{port}/metrics",
        ready=any(
            condition.get("type") == "Ready" and condition.get("status") == "True"
            for condition in mappings(pod, "status", "conditions")
        ),
    )


def _management_port(pod: Received) -> int:
    for container in mappings(pod, "spec", "containers"):
        for port in mappings(container, "ports"):
            if text(port, "name") == "management":
                return number(port, "containerPort")
    return 0
