"""Reads Kubernetes quantities: `500m`, `1.5`, `2Gi`, `1e3`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Any

MIB = 2**20
"""The bytes of a mebibyte."""
_FACTORS: Mapping[str, Decimal] = MappingProxyType(
    {
        "n": Decimal("1e-9"),
        "u": Decimal("1e-6"),
        "m": Decimal("1e-3"),
        "": Decimal(1),
        **{suffix: Decimal(1000) ** (power + 1) for power, suffix in enumerate("kMGTPE")},
        **{suffix + "i": Decimal(1024) ** (power + 1) for power, suffix in enumerate("KMGTPE")},
    }
)
_QUANTITY = re.compile(
    r"(?P<digits>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))"
    r"(?:(?P<exponent>[eE][+-]?[0-9]+)|(?P<suffix>[numkMGTPE]|[KMGTPE]i)?)"
)


def parse_quantity(value: Any) -> Decimal | None:
    """Return the number that a quantity stands for, since the API spells 1000m as 1; None when the value is not a
    quantity.
    """
    match = None if isinstance(value, bool) else _QUANTITY.fullmatch(str(value))
    if match is None:
        return None
    if match["exponent"] is not None:
        return Decimal(match["digits"] + match["exponent"])
    return Decimal(match["digits"]) * _FACTORS[match["suffix"] or ""]


def format_plain_number(quantity: str) -> str:
    """Return a quantity without its suffix, for readers of plain numbers: "500m" becomes "0.5".

    ValueError says that the text is not a quantity.
    """
    number = parse_quantity(quantity)
    if number is None:
        raise ValueError(f"{quantity!r} is not a Kubernetes quantity")
    return f"{number.normalize():f}"
