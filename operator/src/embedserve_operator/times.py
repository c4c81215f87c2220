"""Moments as the API writes them, and as whole seconds since 1970, which decisions reckon with. No clock."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_FORM = "%Y-%m-%dT%H:%M:%SZ"
_UNITS = {"h": 3600, "m": 60, "s": 1}
DURATION = "^([0-9]{1,6}[hms])+$"


def seconds_of(moment: str) -> int | None:
    """None where it is not a moment as this module writes it."""
    try:
        return int(datetime.strptime(moment, _FORM).replace(tzinfo=UTC).timestamp())
    except ValueError:
        return None


def moment_of(seconds: int) -> str:
    """The moment as the API writes it."""
    return datetime.fromtimestamp(seconds, UTC).strftime(_FORM)


def duration_of(text: str) -> int:
    """Seconds of a duration such as 24h or 1h30m."""
    return sum(int(count) * _UNITS[unit] for count, unit in re.findall("([0-9]+)([hms])", text))
