"""What a person sees while the cluster comes up: one line a step, with the seconds since the start."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Progress:
    """Writes to standard error, so that a command's own output stays clean."""

    started: float = field(default_factory=time.monotonic)

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.started:6.1f} s] {text}", file=sys.stderr, flush=True)

    @contextmanager
    def step(self, name: str, hint: str = "") -> Iterator[None]:
        """Announce a step and, when it took more than two seconds, say how long it was."""
        self.say(f"{name} ({hint})" if hint else name)
        begun = time.monotonic()
        yield
        took = time.monotonic() - begun
        if took > 2:
            self.say(f"{name}: done in {took:.1f} s")
