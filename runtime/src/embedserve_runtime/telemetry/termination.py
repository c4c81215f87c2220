"""Writes the pod's termination message, which the operator reads.

The contract is JSON, read by the operator from the container's state: `{"reason", "message", "retryable"}` after a
failure, `{"model": {...}}` after a fetch.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import orjson

from embedserve_runtime.errors import EmbedserveError
from embedserve_runtime.telemetry.redaction import Redactor

log = logging.getLogger(__name__)

# The kubelet keeps 4096 bytes, and would cut a longer message in the middle of the JSON.
MAX_MESSAGE_BYTES = 4_096


def write_termination_message(path: Path, error: EmbedserveError, redactor: Redactor) -> None:
    """Write why the process failed, with as much of the message as fits."""
    message = redactor.redact(error.message)
    content: dict[str, object] = {"reason": error.reason, "message": message, "retryable": error.retryable}
    while len(orjson.dumps(content)) > MAX_MESSAGE_BYTES:
        message = message[: len(message) * 3 // 4]
        content["message"] = message
    _write(path, content)


def write_termination_result(path: Path, result: Mapping[str, object]) -> None:
    """Write the result of the process."""
    _write(path, result)


def _write(path: Path, content: Mapping[str, object]) -> None:
    """Write to `path` if it exists, as it does in a pod; a failure to write must not hide the outcome itself."""
    if not path.exists():
        return
    try:
        path.write_bytes(orjson.dumps(content))
    except OSError as problem:
        log.warning("cannot write the termination message", extra={"path": str(path), "error": str(problem)})
