"""Says how much of a resource to ask for, where a node has evicted a pod for want of it."""

from __future__ import annotations

import re
from decimal import Decimal

from embedserve_operator.api.quantities import parse_quantity
from embedserve_operator.manifests.memory import format_mib, grow
from embedserve_operator.manifests.volume import TMP_VOLUME, VOLUME

_RESOURCES = r"memory|ephemeral-storage"
_LOW_NODE = re.compile(rf"low on resource: (?P<resource>{_RESOURCES})\b")
_USED = re.compile(r"Container (?P<container>\S+) was using (?P<used>[0-9.]+[A-Za-z]*)")
_OVER_LIMIT = re.compile(
    r"(?:ephemeral local storage usage exceeds the total limit of containers|"
    r"exceeded its local ephemeral storage limit) \"?(?P<limit>[0-9.]+[A-Za-z]*)"
)
_FULL_VOLUME = re.compile(r"Usage of EmptyDir volume \"(?P<volume>[^\"]+)\" exceeds the limit")
"""Patterns of the kubelet's messages about an eviction."""


def advise_after_eviction(message: str, storage_limit: str | int | None) -> str:
    """Return what to set after an eviction, by the kubelet's message about it; empty where that names no resource.

    `storage_limit` is the ephemeral storage that the pod had. Where the user gives that, our volumes take any part of
    it.
    """
    over, low, full = _OVER_LIMIT.search(message), _LOW_NODE.search(message), _FULL_VOLUME.search(message)
    if over is not None:
        return _advise("limits", "ephemeral-storage", over["limit"])
    if full is not None:
        is_ours = full["volume"] in (VOLUME, TMP_VOLUME)
        return _advise("limits", "ephemeral-storage", str(storage_limit)) if is_ours else ""
    if low is None:
        return ""
    uses = [(parse_quantity(match["used"]) or Decimal(0), match["used"]) for match in _USED.finditer(message)]
    return _advise("requests", low["resource"], max(uses)[1]) if uses else ""


def _advise(kind: str, resource: str, amount: str) -> str:
    number = parse_quantity(amount)
    if number is None:
        return ""
    return f"; set spec.resources.{kind}.{resource} to {format_mib(grow(number))} or more"
