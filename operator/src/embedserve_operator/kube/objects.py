"""This module names objects that are passed on whole, and spells values in the one form that can be compared.

What is read of a received object is read by a view of its kind (`kube.views`).
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
