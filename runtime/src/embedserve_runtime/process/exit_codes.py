"""Exit codes of a server that a signal ends before it is ready."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Final

EXIT_CODES_BEFORE_READINESS: Final[Mapping[signal.Signals, int]] = {
    # Kubernetes removes a pod by these, and the operator reports another code than 0 as a container that failed.
    signal.SIGTERM: 0,
    signal.SIGHUP: 0,
    # Whoever pressed Ctrl-C, or a script, expects the exit code that shells use.
    signal.SIGINT: 128 + signal.SIGINT,
}
"""Once the server has been ready it exits with 0 after any of them."""
