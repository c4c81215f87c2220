"""Writes logs on standard error: readable lines on a terminal, else one JSON object a line.

Fields given with `extra=` are written as they are. Secrets are replaced in the whole line, tracebacks included.
"""

from __future__ import annotations

import io
import logging
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, TextIO

import click
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


class TextFormatter(logging.Formatter):
    """Formats a record as a human-readable line: local time, level, message, and the fields that have a value."""

    def __init__(self, redactor: Redactor, *, is_colored: bool) -> None:
        super().__init__()
        self._redactor = redactor
        self._is_colored = is_colored

    def format(self, record: logging.LogRecord) -> str:
        written = datetime.fromtimestamp(record.created, UTC).astimezone()
        fields = " ".join(f"{name}={_format_value(value)}" for name, value in _list_fields(record))
        parts = [
            self._paint(f"{written:%H:%M:%S}", "dim"),
            self._paint(f"{record.levelname.lower():<8}", record.levelname),
            self._redactor.redact(_escape_controls(record.getMessage())),
        ]
        if fields:
            parts.append(self._paint(self._redactor.redact(fields), "dim"))
        line = " ".join(parts)
        if record.exc_info:
            line += "\n" + self._redactor.redact(self.formatException(record.exc_info))
        return line

    def _paint(self, text: str, style: str) -> str:
        return click.style(text, **_STYLES[style]) if self._is_colored and style in _STYLES else text


_STYLES: Final[dict[str, dict[str, Any]]] = {
    "dim": {"dim": True},
    "DEBUG": {"dim": True},
    "INFO": {"fg": "green"},
    "WARNING": {"fg": "yellow"},
    "ERROR": {"fg": "red"},
    "CRITICAL": {"fg": "red", "bold": True},
}
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def _list_fields(record: logging.LogRecord) -> Iterator[tuple[str, object]]:
    """List the fields that have a value; those of a mapping each for itself."""
    for name, value in vars(record).items():
        if name not in _STANDARD:
            fields = value.items() if isinstance(value, Mapping) else [(name, value)]
            yield from ((name, value) for name, value in fields if value is not None)


def _format_value(value: object) -> str:
    """Format a field as it is where that has no white space, else as JSON."""
    text = value if isinstance(value, str) else orjson.dumps(value, default=str).decode()
    if isinstance(value, str) and (not text or " " in text or '"' in text):
        text = orjson.dumps(text).decode()
    return _escape_controls(text)


def _escape_controls(text: str) -> str:
    """Escape what would move a terminal's cursor or start another line."""
    return _CONTROLS.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def is_color_terminal(stream: TextIO) -> bool:
    """Return whether a stream is a terminal whose user has not asked for plain text (`NO_COLOR`, `TERM=dumb`)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to what `sys.stderr` is at that time: a progress bar replaces it while it is shown."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, stream: TextIO) -> None:
        raise NotImplementedError("it is always standard error")


def configure_logs(level: str, redactor: Redactor, log_format: str = "json") -> None:
    """Send all logs through one formatter, uncaught exceptions included; libraries log from warning on.

    log_format: `auto`, `text` or `json`, as the setting of that name.
    """
    is_text = log_format == "text" or (log_format == "auto" and sys.stderr.isatty())
    handler = _StderrHandler()
    handler.setFormatter(
        TextFormatter(redactor, is_colored=is_color_terminal(sys.stderr))
        if is_text
        else JsonFormatter(redactor)
    )
    _leave_out_origin()
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("embedserve_runtime").setLevel(level.upper())
    sys.excepthook = _log_uncaught
    threading.excepthook = lambda arguments: _log_uncaught(
        arguments.exc_type, arguments.exc_value or arguments.exc_type(), arguments.exc_traceback
    )


def _leave_out_origin() -> None:
    """Look up neither the caller of a log line nor its thread and process, which the formatter does not write.

    See https://docs.python.org/3/howto/logging.html#optimization.
    """
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False


def _log_uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Log an uncaught exception, instead of the interpreter's own hook, which writes tracebacks past the formatter."""
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
