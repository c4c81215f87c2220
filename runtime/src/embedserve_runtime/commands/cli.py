"""The entry point of the `embedserve` command.

Results go to standard output, logs and errors to standard error. Exit codes are 0, 1 (it could not be done, with the
reason), 2 (wrong usage), 78 (wrong settings: trying again changes nothing), 130 (interrupted by Ctrl-C)
and 141 (nobody reads the output any more).

It imports little, so that signals and streams are dealt with before the other libraries are imported.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

from embedserve_runtime.commands.output import OutputFailed, checked_output, write_error
from embedserve_runtime.commands.signals import (
    INTERRUPTED,
    exit_on_sigint,
    exit_on_sigterm,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    with exit_on_sigterm():
        try:
            with checked_output():
                with exit_on_sigint():
                    from embedserve_runtime.commands.execution import execute
                return execute(argv)
        except KeyboardInterrupt:
            write_error("interrupted")
            return INTERRUPTED
        except OutputFailed as error:
            if error.is_unread:
                return 128 + signal.SIGPIPE
            write_error(f"the output cannot be written: {error}")
            return 1


if __name__ == "__main__":
    sys.exit(main())
