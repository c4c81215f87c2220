"""A bound on how many values a JSON body may have, which is looked at before it is parsed.

Parsing makes an object of each value while the interpreter is held: 16 MB of token ids, five million of them, stop the
event loop for seconds, only to be refused for their number.
"""

from __future__ import annotations

import asyncio

import numpy as np

from embedserve_runtime.errors import BatchTooLarge

_QUOTE, _COMMA = ord('"'), ord(",")


async def check_values(content: bytes, max_values: int) -> None:
    """Raises BatchTooLarge for a body with more than `max_values` commas outside of texts.

    Few bodies have so many commas at all; of those that have, texts full of commas are told from arrays in a thread.
    """
    if content.count(b",") <= max_values:
        return
    values = await asyncio.to_thread(_count_values, content)
    if values > max_values:
        raise BatchTooLarge(
            f"the body has {values} values, one request may have {max_values}; send fewer at a time"
        )


def _count_values(content: bytes) -> int:
    """Commas that stand between values. numpy lets other threads run meanwhile."""
    plain = content.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in content else content
    characters = np.frombuffer(plain, dtype=np.uint8)
    is_in_text = np.bitwise_xor.accumulate(characters == _QUOTE)
    return int(np.count_nonzero((characters == _COMMA) & ~is_in_text)) + 1
