"""Parses and formats moments and durations as the API writes them. It does not know the clock."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
_UNITS = {"h": 3600, "m": 60, "s": 1}
DURATION = "^([0-9]{1,6}[hms])+$"


def parse_moment(moment: str) -> int | None:
    """Return a moment as seconds since 1970; None where the text is not a moment as this module writes it."""
    try:
        return int(datetime.strptime(moment, _TIME_FORMAT).replace(tzinfo=UTC).timestamp())
    except ValueError:
        return None


def format_moment(seconds: int) -> str:
    """Return seconds since 1970 as the API writes a moment."""
    return datetime.fromtimestamp(seconds, UTC).strftime(_TIME_FORMAT)


def parse_duration(text: str) -> int:
    """Return the seconds of a duration such as 24h or 1h30m."""
    return sum(int(count) * _UNITS[unit] for count, unit in re.findall("([0-9]+)([hms])", text))
