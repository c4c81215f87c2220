"""This module finds out whether a live object is still what was applied.

Additions by others (defaults, labels of a service mesh) do not count.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from embedserve_operator.kube.objects import Manifest
from embedserve_operator.manifests.metadata import read_fingerprint
from embedserve_operator.state.resource import Child

_LIST_KEYS = ("uid", "mountPath", "name")
"""Fields that identify the items of a list, the most specific one first."""
_ATOMIC_MAPS = frozenset({"selector", "nodeSelector"})
"""Maps that the API treats as one value: an additional key changes their meaning."""
_QUANTITIES = frozenset({"limits", "requests"})
_SUFFIXES = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    **{suffix: Decimal(1000) ** (power + 1) for power, suffix in enumerate("kMGTPE")},
    **{suffix + "i": Decimal(1024) ** (power + 1) for power, suffix in enumerate("KMGTPE")},
}


def find_reason_to_apply(wanted: Manifest, child: Child | None) -> str | None:
    """Return why the object has to be written, for the log; None when it need not be."""
    if child is None:
        return "it does not exist"
    if child.fingerprint != read_fingerprint(wanted):
        return "it should be different"
    path = find_first_difference(wanted, child.received)
    return f"{path} is not as it should be" if path is not None else None


def find_first_difference(wanted: Any, live: Any, path: str = "", *, whole: bool = False) -> str | None:
    """Return the path of the first value that is not as wanted; None when there is no difference."""
    if isinstance(wanted, Mapping):
        return _find_mapping_difference(wanted, live, path, whole=whole)
    if isinstance(wanted, list):
        return _find_list_difference(wanted, live, path)
    # The API leaves out what is empty, false or zero.
    if wanted == live or (live is None and not wanted):
        return None
    return path


def _find_mapping_difference(wanted: Mapping[str, Any], live: Any, path: str, *, whole: bool) -> str | None:
    if live is None:
        live = {}
    if not isinstance(live, Mapping) or (whole and set(live) != set(wanted)):
        return path
    name = path.rsplit(".", 1)[-1]
    for key, value in wanted.items():
        where = f"{path}.{key}" if path else key
        if name in _QUANTITIES:
            if parse_quantity(value) != parse_quantity(live.get(key)):
                return where
            continue
        found = find_first_difference(value, live.get(key), where, whole=key in _ATOMIC_MAPS)
        if found is not None:
            return found
    return None


def _find_list_difference(wanted: list[Any], live: Any, path: str) -> str | None:
    if not isinstance(live, list):
        return path if wanted else None
    key = next(
        (k for k in _LIST_KEYS if all(isinstance(item, Mapping) and k in item for item in wanted)), None
    )
    if key is None:
        return None if wanted == live else path
    by_key = {item.get(key): item for item in live if isinstance(item, Mapping)}
    for item in wanted:
        found = find_first_difference(item, by_key.get(item[key]), f"{path}[{item[key]}]")
        if found is not None or item[key] not in by_key:
            return found or f"{path}[{item[key]}]"
    return None


def parse_quantity(value: Any) -> Decimal | None:
    """Return the number that a Kubernetes quantity stands for; the API spells 1000m as 1."""
    match = re.fullmatch(r"([+-]?[0-9.]+)(?:([eE][+-]?[0-9]+)|([numkMGTPE]i?|Ki)?)", str(value))
    if match is None:
        return None
    digits, exponent, suffix = match.groups()
    if exponent is not None:
        return Decimal(digits + exponent)
    factor = _SUFFIXES.get(suffix or "")
    return Decimal(digits) * factor if factor is not None else None
