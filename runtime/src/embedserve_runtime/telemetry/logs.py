"""Structured logs: one JSON object a line, on standard error.

Fields given with `extra=` come out as they are; settings with secrets are pydantic SecretStr and stay masked.
"""

from __future__ import annotations

import io
import logging
import sys
from datetime import UTC, datetime
from typing import Any

import orjson

# What every record has; anything else on it was given with `extra=`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update((name, value) for name, value in vars(record).items() if name not in _STANDARD)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


def configure_logs(level: str) -> None:
    """Send everything through the JSON formatter; libraries speak from warning on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("embedserve_runtime").setLevel(level.upper())


def unread_log(name: str) -> logging.Logger:
    """Its lines cost what those of others cost, and nobody reads them."""
    log = logging.Logger(name, logging.INFO)
    handler = logging.StreamHandler(_Unread())
    handler.setFormatter(JsonFormatter())
    log.addHandler(handler)
    return log


class _Unread(io.TextIOBase):
    def write(self, text: str, /) -> int:
        return len(text)
