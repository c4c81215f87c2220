"""This module takes apart objects as the Kubernetes API sends them.

Dictionaries of unknown shape live only here, in `observe`, in `kube` and in what `manifests` returns.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, TypeAlias

Manifest: TypeAlias = dict[str, Any]
"""An object that is to be sent."""

Received: TypeAlias = Mapping[str, Any]
"""An object that came from the API server."""


def dig(value: Any, *path: str | int) -> Any:
    """Return the value at a path, or None where any step of the path is missing."""
    for step in path:
        if isinstance(step, int):
            if not isinstance(value, list) or len(value) <= step:
                return None
            value = value[step]
        elif isinstance(value, Mapping):
            value = value.get(step)
        else:
            return None
    return value


def text(value: Any, *path: str | int) -> str:
    """Return the string at a path; it is empty when the path is missing."""
    found = dig(value, *path)
    return found if isinstance(found, str) else ""


def number(value: Any, *path: str | int) -> int:
    """Return the integer at a path; it is 0 when the path is missing, since the API leaves out counts of zero."""
    found = dig(value, *path)
    return found if isinstance(found, int) else 0


def mappings(value: Any, *path: str | int) -> list[Received]:
    """Return the list of objects at a path; it is empty when the path is missing."""
    found = dig(value, *path)
    return [item for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []


def strings(value: Any, *path: str | int) -> tuple[str, ...]:
    """Return the list of strings at a path; it is empty when the path is missing."""
    found = dig(value, *path)
    return tuple(item for item in found if isinstance(item, str)) if isinstance(found, list) else ()


def canonical(value: Any) -> str:
    """Return the one spelling that equal JSON values share."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def short_hash(value: Any) -> str:
    """Return eight hex digits that identify a JSON value: enough to tell the few variants of one service
    apart.
    """
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:8]


_SUFFIXES = {
    **{
        letter: f"e{power}"
        for letter, power in (("n", -9), ("u", -6), ("m", -3), ("k", 3), ("M", 6), ("G", 9))
    },
    **{letter: f"e{power}" for letter, power in (("T", 12), ("P", 15), ("E", 18))},
}


def decimal_of(quantity: str) -> str:
    """Return a Kubernetes quantity without its suffix, for readers of plain numbers: "500m" becomes "0.5"."""
    if quantity.endswith("i"):
        power = "KMGTPE".index(quantity[-2]) + 1
        return f"{Decimal(quantity[:-2]) * 1024**power:f}"
    power_of_ten = _SUFFIXES.get(quantity[-1])
    return f"{Decimal(quantity if power_of_ten is None else quantity[:-1] + power_of_ten).normalize():f}"
