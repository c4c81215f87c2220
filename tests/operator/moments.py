"""Two moments, for whatever takes the time from its caller."""

from datetime import UTC, datetime

NOON = datetime(2026, 1, 2, 12, 0, 0, tzinfo=UTC)
LATER = datetime(2026, 1, 2, 12, 30, 0, tzinfo=UTC)
