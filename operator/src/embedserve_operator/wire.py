"""Objects as the Kubernetes API speaks them, and the few ways this package takes them apart.

Dictionaries of unknown shape live only here, in `observe`, `kube` and as the output of `specs`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, TypeAlias

Manifest: TypeAlias = dict[str, Any]
"""An object to be sent."""

Received: TypeAlias = Mapping[str, Any]
"""An object that came from the API server."""


def dig(value: Any, *path: str | int) -> Any:
    """The value at a path, or None where any step of it is missing."""
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
    """The string at a path, empty when it is missing."""
    found = dig(value, *path)
    return found if isinstance(found, str) else ""


def number(value: Any, *path: str | int) -> int:
    """The integer at a path, 0 when it is missing (the API leaves zero counts out)."""
    found = dig(value, *path)
    return found if isinstance(found, int) else 0


def mappings(value: Any, *path: str | int) -> list[Received]:
    """The list of objects at a path, empty when it is missing."""
    found = dig(value, *path)
    return [item for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []


def strings(value: Any, *path: str | int) -> tuple[str, ...]:
    """The list of strings at a path, empty when it is missing."""
    found = dig(value, *path)
    return tuple(item for item in found if isinstance(item, str)) if isinstance(found, list) else ()


def canonical(value: Any) -> str:
    """One spelling for equal JSON values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def short_hash(value: Any) -> str:
    """Eight hex digits that name a JSON value: enough to tell the few variants of one service apart."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:8]


_SUFFIXES = {
    **{
        letter: f"e{power}"
        for letter, power in (("n", -9), ("u", -6), ("m", -3), ("k", 3), ("M", 6), ("G", 9))
    },
    **{letter: f"e{power}" for letter, power in (("T", 12), ("P", 15), ("E", 18))},
}


def decimal_of(quantity: str) -> str:
    """A Kubernetes quantity without its suffix, for those who read plain numbers: "500m" is "0.5"."""
    if quantity.endswith("i"):
        power = "KMGTPE".index(quantity[-2]) + 1
        return f"{Decimal(quantity[:-2]) * 1024**power:f}"
    power_of_ten = _SUFFIXES.get(quantity[-1])
    return f"{Decimal(quantity if power_of_ten is None else quantity[:-1] + power_of_ten).normalize():f}"
