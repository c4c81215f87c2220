"""Lets several threads run one session at a time."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from embedserve_runtime.cpu.priority import raise_nice, read_nice


class ConcurrentSession:
    """A session that several threads may run.

    A run that comes alone has the calling thread and those of the session. One that comes meanwhile runs on a thread
    of the session: so no more threads work than the session was given, and of two cores each does its own run, without
    waiting for the other at the end of every operator. A third has its calling thread again, as the thread of the
    session would run it after the second.

    threads: threads of the session, the calling one included; with one it has none of its own.
    """

    def __init__(self, session: onnxruntime.InferenceSession, threads: int | None) -> None:
        self._session = session
        self._has_threads = threads is not None and threads > 1
        self._on_calling_thread = threading.Lock()
        self._on_its_threads = threading.Lock()

    def run(
        self,
        outputs: Sequence[str],
        feeds: Mapping[str, NDArray[np.generic]],
        options: onnxruntime.RunOptions | None = None,
    ) -> list[NDArray[Any]]:
        """Run the session. options: of this run. Raises what its own `run` does (`session.RUN_ERRORS`)."""
        if not self._has_threads:
            return self._session.run(outputs, feeds, options)  # type: ignore[no-any-return]  # it has no types
        for lock, run in (
            (self._on_calling_thread, self._session.run),
            (self._on_its_threads, self._run_on_its_threads),
        ):
            if lock.acquire(blocking=False):
                try:
                    return run(outputs, feeds, options)
                finally:
                    lock.release()
        return self._session.run(outputs, feeds, options)  # type: ignore[no-any-return]

    def _run_on_its_threads(
        self,
        outputs: Sequence[str],
        feeds: Mapping[str, NDArray[np.generic]],
        options: onnxruntime.RunOptions | None,
    ) -> list[NDArray[Any]]:
        ended: queue.SimpleQueue[tuple[list[NDArray[Any]], str]] = queue.SimpleQueue()
        nice = read_nice()

        def end(arrays: list[NDArray[Any]], _: object, error: str) -> None:
            raise_nice(nice)  # for the runs to come: this is the thread of the session
            ended.put((arrays, error))

        # The feeds are what goes along with the call too: the session reads them until it is back.
        self._session.run_async(outputs, feeds, end, feeds, options)
        arrays, error = ended.get()
        if error:
            raise Fail(error)
        return arrays
