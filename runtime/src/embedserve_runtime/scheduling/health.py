"""Checks whether the engine can still do what it could when it was started.

Some errors spoil one batch: a text that an operator cannot take, a moment without memory. After others nothing runs any
more, as after an illegal access in a CUDA kernel, which takes the context of the whole process with it. A batch that
failed does not tell which it was; a batch that ran before does.
"""

from __future__ import annotations

from collections.abc import Callable

from embedserve_runtime.errors import EmbedserveError, EngineFailure
from embedserve_runtime.scheduling.batches import BatchRequest, CompletedRequest, RequestDispatcher

PROBES = 3
"""Failures in a row of a batch that ran before, after which the engine counts as broken."""
PROBE_SECONDS = 60.0
"""A probe that waits longer says nothing: the engine is busy, and thereby alive."""


class EngineMonitor:
    """Probes the engine after a batch of which every input failed. Belongs to one event loop.

    probe: what has run before. on_broken: called once, with a message about the cause.
    """

    def __init__(
        self,
        dispatcher: RequestDispatcher,
        probe: BatchRequest,
        clock: Callable[[], float],
        on_broken: Callable[[str], None],
    ) -> None:
        self._dispatcher = dispatcher
        self._probe = probe
        self._clock = clock
        self._on_broken = on_broken
        self._is_probing = False
        self._failures = 0

    def batch_failed(self) -> None:
        """Start probes unless they run. Call it after each batch of which every input failed, also a probe's."""
        if not self._is_probing:
            self._is_probing = True
            self._failures = 0
            self._start()

    def _start(self) -> None:
        try:
            self._dispatcher.start(self._probe, self._clock() + PROBE_SECONDS, self._settle)
        except EmbedserveError:  # no room, or the process is stopping; the next failure asks again
            self._is_probing = False

    def _settle(self, outcome: CompletedRequest | EmbedserveError) -> None:
        if not isinstance(outcome, EngineFailure):
            self._is_probing = False
            return
        self._failures += 1
        if self._failures < PROBES:
            self._start()
        else:
            self._on_broken(_describe_cause(outcome))


def _describe_cause(failure: EngineFailure) -> str:
    """Return the first line of the error that caused a failure; where there is none, the failure's message."""
    cause = failure.__cause__
    if cause is None:
        return failure.message
    lines = str(cause).strip().splitlines()
    return f"{type(cause).__name__}: {lines[0]}" if lines else type(cause).__name__
