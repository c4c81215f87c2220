"""Trouble on demand: refusals, slow and broken transfers for chosen requests."""

from __future__ import annotations

import fnmatch
import threading
from dataclasses import dataclass, replace
from enum import StrEnum


class FaultKind(StrEnum):
    RATE_LIMIT = "rateLimit"
    """429; ``amount`` is the Retry-After in seconds."""

    SERVER_ERROR = "serverError"
    """503 with an HTML body, as a proxy in front of the hub would answer."""

    SLOW = "slow"
    """File contents at ``amount`` bytes a second."""

    BROKEN = "broken"
    """The connection closes after ``amount`` bytes of the content."""

    UNBOUNDED_RANGE = "unboundedRange"
    """The end of a range is ignored: the content goes on to the end of the file."""

    CORRUPT = "corrupt"
    """One byte of the content, the one at offset ``amount`` of what is sent (or its last), is another one."""


@dataclass(frozen=True)
class Fault:
    kind: FaultKind
    path: str = "*"
    """Shell pattern over the request's path, for example ``/*/resolve/*/model.safetensors``."""

    amount: int = 1
    times: int | None = None
    """The number of requests for which it holds; None: until it is cleared."""


class Faults:
    """The faults in force, shared by all of a server's threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[Fault] = []

    def add(self, fault: Fault) -> None:
        with self._lock:
            self._faults.append(fault)

    def clear(self) -> None:
        with self._lock:
            self._faults.clear()

    def take(self, path: str, *, has_content: bool) -> Fault | None:
        """The oldest fault that concerns a request; uses it up once where it holds for a number of times.

        Slow, broken and corrupt transfers concern only requests that send a file's content: a HEAD uses none up.
        """
        with self._lock:
            for place, fault in enumerate(self._faults):
                of_content = fault.kind in (FaultKind.SLOW, FaultKind.BROKEN, FaultKind.CORRUPT)
                if not fnmatch.fnmatchcase(path, fault.path) or (of_content and not has_content):
                    continue
                if fault.times is not None:
                    self._use_up(place, fault.times)
                return fault
        return None

    def _use_up(self, place: int, times: int) -> None:
        if times > 1:
            self._faults[place] = replace(self._faults[place], times=times - 1)
        else:
            del self._faults[place]
