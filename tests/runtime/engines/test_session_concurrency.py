"""The thread that a run of a session gets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from embedserve_runtime.engines.onnx.session_concurrency import ConcurrentSession

SECONDS = 30.0


class Session:
    """Stands for ONNX Runtime's session. A run on the calling thread ends when `end` is set."""

    def __init__(self) -> None:
        self.begun, self.end = threading.Semaphore(0), threading.Event()

    def run(self, _outputs: Sequence[str], _feeds: Mapping[str, object], _options: object) -> list[str]:
        self.begun.release()
        assert self.end.wait(SECONDS)
        return ["calling thread"]

    def run_async(
        self,
        _outputs: Sequence[str],
        _feeds: Mapping[str, object],
        callback: Callable[[list[str], object, str], None],
        user_data: object,
        _options: object,
    ) -> None:
        threading.Thread(target=callback, args=(["thread of the session"], user_data, "")).start()


def test_a_run_that_comes_during_another_goes_to_the_threads_of_the_session() -> None:
    session: Any = Session()
    concurrent = ConcurrentSession(session, 2)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(concurrent.run, [], {})
        assert session.begun.acquire(timeout=SECONDS)
        assert concurrent.run([], {}) == ["thread of the session"]
        session.end.set()
        assert first.result() == ["calling thread"]
    assert concurrent.run([], {}) == ["calling thread"]


def test_a_third_run_does_not_wait_for_the_thread_of_the_session() -> None:
    session: Any = Session()
    is_taken, held = threading.Event(), threading.Event()

    def run_async(_o: object, _f: object, callback: Callable[..., None], data: object, _p: object) -> None:
        def answer() -> None:
            held.wait(SECONDS)
            callback(["thread of the session"], data, "")

        threading.Thread(target=answer).start()
        is_taken.set()

    session.run_async = run_async
    concurrent = ConcurrentSession(session, 2)
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(concurrent.run, [], {})
        assert session.begun.acquire(timeout=SECONDS)
        second = pool.submit(concurrent.run, [], {})
        assert is_taken.wait(SECONDS)
        third = pool.submit(concurrent.run, [], {})
        assert session.begun.acquire(timeout=SECONDS)
        session.end.set()
        got = [future.result() for future in (first, third)]
        held.set()
        assert got == [["calling thread"]] * 2
        assert second.result() == ["thread of the session"]


def test_where_the_session_has_none_of_its_own_all_runs_have_their_calling_threads() -> None:
    session: Any = Session()
    concurrent = ConcurrentSession(session, 1)
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(concurrent.run, [], {}) for _ in range(2)]
        assert all(session.begun.acquire(timeout=SECONDS) for _ in futures)
        session.end.set()
        assert [future.result() for future in futures] == [["calling thread"]] * 2
