"""Says how much of a resource to ask for, where a pod or a container was ended for want of it."""

from __future__ import annotations

import re
from decimal import Decimal

from embedserve_operator.api.quantities import MIB, parse_quantity
from embedserve_operator.manifests.memory import compute_memory, format_mib

_STEP_BYTES = 64 * MIB
_GROWTH = Decimal("1.5")
"""The factor by which to raise an amount that was not enough: how much more would have been used is not known."""
_RESOURCES = r"memory|ephemeral-storage"
_LOW_NODE = re.compile(rf"low on resource: (?P<resource>{_RESOURCES})\b")
_USED = re.compile(r"Container (?P<container>\S+) was using (?P<used>[0-9.]+[A-Za-z]*)")
_OVER_LIMIT = re.compile(
    r"(?:ephemeral local storage usage exceeds the total limit of containers|"
    r"exceeded its local ephemeral storage limit|exceeds the limit) \"?(?P<limit>[0-9.]+[A-Za-z]*)"
)
"""Patterns of the kubelet's messages about an eviction."""


def choose_memory_limit(limit: str | int | None, model_bytes: int | None) -> str | None:
    """Return a memory limit with which a container that ran out of memory should do: half as much again as the limit
    that it had, and no less than its model needs. None where neither is known.
    """
    failed = parse_quantity(limit) if limit is not None else None
    limits = [
        *([] if failed is None else [_grow(failed)]),
        *([] if model_bytes is None else [compute_memory(model_bytes)]),
    ]
    return format_mib(max(limits)) if limits else None


def advise_after_eviction(message: str) -> str:
    """Return what to set after an eviction, by the kubelet's message about it; empty where that names no resource."""
    over, low = _OVER_LIMIT.search(message), _LOW_NODE.search(message)
    if over is not None:
        return _advise("limits", "ephemeral-storage", over["limit"])
    if low is None:
        return ""
    uses = [(parse_quantity(match["used"]) or Decimal(0), match["used"]) for match in _USED.finditer(message)]
    return _advise("requests", low["resource"], max(uses)[1]) if uses else ""


def _advise(kind: str, resource: str, amount: str) -> str:
    number = parse_quantity(amount)
    if number is None:
        return ""
    return f"; set spec.resources.{kind}.{resource} to {format_mib(_grow(number))} or more"


def _grow(number: Decimal) -> int:
    return -(-int(number * _GROWTH) // _STEP_BYTES) * _STEP_BYTES
