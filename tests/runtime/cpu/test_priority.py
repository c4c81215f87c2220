"""Priorities of threads."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from embedserve_runtime.cpu.priority import GIVE_WAY_BY, MAX_NICE, give_way, raise_nice, read_nice


def run_in_thread(function: Callable[[], None]) -> int:
    """Return the nice value of a thread after it has called a function."""
    priorities: list[int] = []

    def call() -> None:
        function()
        priorities.append(read_nice())

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    return priorities[0]


OWN = read_nice()


@pytest.mark.parametrize(
    ("function", "want"),
    [
        pytest.param(give_way, min(OWN + GIVE_WAY_BY, MAX_NICE), id="it gives way to the others"),
        pytest.param(lambda: raise_nice(OWN - 1), OWN, id="it is never put before them"),
        pytest.param(lambda: raise_nice(100), MAX_NICE, id="no further than the lowest priority"),
    ],
)
def test_a_thread_changes_its_own_priority_alone(function: Callable[[], None], want: int) -> None:
    assert run_in_thread(function) == want
    assert read_nice() == OWN
