"""Writes structured logs: one JSON object a line, on standard error.

Fields given with `extra=` are written as they are. Secrets are replaced in the whole line, tracebacks included.
"""

from __future__ import annotations

import io
import logging
import sys
import threading
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

import orjson

from embedserve_runtime.telemetry.redaction import Redactor

log = logging.getLogger(__name__)

# The attributes of every record; any other was given with `extra=`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


class JsonFormatter(logging.Formatter):
    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self._redactor = redactor

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
        return self._redactor.redact(orjson.dumps(line, default=str).decode())


def configure_logs(level: str, redactor: Redactor) -> None:
    """Send all logs through the JSON formatter, uncaught exceptions included; libraries log from warning on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(redactor))
    _leave_out_origin()
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("embedserve_runtime").setLevel(level.upper())
    sys.excepthook = _log_uncaught
    threading.excepthook = lambda given: _log_uncaught(
        given.exc_type, given.exc_value or given.exc_type(), given.exc_traceback
    )


def _leave_out_origin() -> None:
    """Look up neither the caller of a log line nor its thread and process, which the formatter does not write.

    See https://docs.python.org/3/howto/logging.html#optimization.
    """
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False


def _log_uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Log an uncaught exception, in place of the interpreter's own hook, which writes tracebacks past the formatter."""
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)
    elif not issubclass(kind, SystemExit):
        log.critical("unexpected error", exc_info=(kind, error, traceback))


def create_discarding_logger(name: str) -> logging.Logger:
    """Return a logger that formats its lines and discards them, so that measurements include the cost of logging."""
    log = logging.Logger(name, logging.INFO)
    handler = logging.StreamHandler(_NullStream())
    handler.setFormatter(JsonFormatter(Redactor()))
    log.addHandler(handler)
    return log


class _NullStream(io.TextIOBase):
    def write(self, text: str, /) -> int:
        return len(text)
