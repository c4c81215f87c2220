"""Decides after which batches a session gives back the memory that it keeps for later ones.

ONNX Runtime's arena keeps what the largest batch took. Usual batches are faster for it; after an unusual one nobody
else has that memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable

# After a batch with a longer text. The pages of 1,000 tokens are had again within 1 % of the time that such a text
# takes.
MAX_LENGTH = 1_024
# What a batch of so few tokens takes is always kept.
MIN_TOKENS = 512
# After the first batch that takes less than half of what is kept, this long after the last that took more.
SECONDS = 30.0


class ArenaUsage:
    """Remembers how large the batches were whose memory a session keeps. May be used on several threads: the worst is
    memory that is given back a batch too late."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tokens = 0
        self._used_at = 0.0

    def is_to_be_released(self, tokens: int, longest: int) -> bool:
        """Return whether memory is to be given back after a batch of `tokens` tokens whose longest text has
        `longest`."""
        if longest > MAX_LENGTH:
            self._tokens = 0
            return True
        now = self._clock()
        if 2 * tokens >= self._tokens:
            self._tokens, self._used_at = max(tokens, self._tokens), now
            return False
        if self._tokens <= MIN_TOKENS or now - self._used_at < SECONDS:
            return False
        self._tokens = tokens
        return True
