"""How hard a host may be asked: one gate for each host, shared by every file that is fetched from it.

A host that answers 429 (or 503 with Retry-After) is left alone by all for as long as it says, and then asked by one at
a time until it answers again: its limit is on us, not on a file.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime

from embedserve_runtime.errors import SourceUnavailable

# RateLimit: "api";r=0;t=55 - the Hub's header of the draft standard; t: seconds until the limit begins anew.
_RESET = re.compile(r";\s*t\s*=\s*(\d+)")


@dataclass(frozen=True, slots=True)
class Patience:
    """The bounds of trying again.

    tries: in a row without a byte of progress; tries_to_list: of asking what there is. first_pause_s: doubled each
    time, up to longest_pause_s. longest_wait_s: of one Retry-After. all_waits_s: of all of them together, for one host
    and one fetch.
    """

    tries: int = 6
    tries_to_list: int = 4
    first_pause_s: float = 0.5
    longest_pause_s: float = 10.0
    default_wait_s: float = 5.0
    longest_wait_s: float = 300.0
    all_waits_s: float = 900.0
    connect_s: float = 10.0
    read_s: float = 30.0

    def pause_s(self, failures: int) -> float:
        """Before the next try; with jitter, so that many clients do not come back together."""
        pause: float = min(self.first_pause_s * 2.0 ** (failures - 1), self.longest_pause_s)
        return pause * random.uniform(0.5, 1.0)


@dataclass(slots=True)
class _Gate:
    limit: int
    running: int = 0
    closed_until: float = 0.0
    waited_s: float = 0.0
    changed: threading.Condition = field(default_factory=threading.Condition)


class Hosts:
    """The gates of one fetch."""

    def __init__(self, patience: Patience, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        """most: requests at once to one host."""
        self.patience = patience
        self._most = most
        self._clock = clock
        self._gates: dict[str, _Gate] = {}
        self._lock = threading.Lock()

    @contextmanager
    def turn(self, host: str, stopped: threading.Event) -> Iterator[None]:
        """Held while a request runs; waits for the gate. With `stopped` set it does not wait."""
        gate = self._gate(host)
        with gate.changed:
            while not stopped.is_set():
                pause = gate.closed_until - self._clock()
                if pause <= 0 and gate.running < gate.limit:
                    break
                gate.changed.wait(min(pause, 1.0) if pause > 0 else 1.0)
            gate.running += 1
        try:
            yield
        finally:
            with gate.changed:
                gate.running -= 1
                gate.changed.notify_all()

    def answered(self, host: str) -> None:
        """The host serves: one more request at once, up to the bound."""
        gate = self._gate(host)
        with gate.changed:
            gate.limit = min(gate.limit + 1, self._most)
            gate.changed.notify_all()

    def refused(self, host: str, headers: Mapping[str, str]) -> None:
        """The host asks to be left alone. Raises SourceUnavailable when that has been too long in all."""
        gate = self._gate(host)
        asked = retry_after_s(headers)
        wanted = self.patience.default_wait_s if asked is None else max(asked, self.patience.first_pause_s)
        pause = min(wanted, self.patience.longest_wait_s)
        with gate.changed:
            now = self._clock()
            # Answers to requests that were already on their way ask for the same pause, not for another one.
            gate.waited_s += max(0.0, now + pause - max(gate.closed_until, now))
            gate.closed_until = max(gate.closed_until, now + pause)
            gate.limit = 1
            waited = gate.waited_s
        if waited > self.patience.all_waits_s or (asked is not None and asked > self.patience.longest_wait_s):
            raise SourceUnavailable(
                f"{host} limits how much may be fetched: it asks to wait {pause if asked is None else asked:.0f} s "
                f"more, after {max(0.0, waited - pause):.0f} s of waiting; try again later, or set a token"
            )

    def _gate(self, host: str) -> _Gate:
        with self._lock:
            return self._gates.setdefault(host, _Gate(limit=self._most))


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait by `Retry-After` (a number or a date), else by the rate-limit headers of the Hub."""
    lowered = {name.lower(): value for name, value in headers.items()}
    value = lowered.get("retry-after", "").strip()
    if value.isdigit():
        return float(value)
    if value:
        try:
            return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
        except ValueError:
            return None
    reset = _RESET.search(lowered.get("ratelimit", ""))
    return float(reset[1]) if reset is not None else None
