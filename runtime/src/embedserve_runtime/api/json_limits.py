"""Bounds the number of values in a JSON body before it is parsed.

Parsing creates an object for each value while it holds the interpreter: 16 MB of token ids, five million of them, stop
the event loop for seconds, only to be refused for their number.
"""

from __future__ import annotations

import asyncio

import numpy as np

from embedserve_runtime.errors import BatchTooLarge

_QUOTE, _COMMA = ord('"'), ord(",")


async def check_value_count(content: bytes, max_values: int) -> None:
    """Raise BatchTooLarge for a body with more than `max_values` commas outside of texts.

    Few bodies have so many commas at all; for those that have, a thread tells commas in texts from those in arrays.
    """
    if content.count(b",") <= max_values:
        return
    values = await asyncio.to_thread(_count_values, content)
    if values > max_values:
        raise BatchTooLarge(
            f"the body has {values} values, one request may have {max_values}; send fewer at a time"
        )


def _count_values(content: bytes) -> int:
    """Count the values by the commas between them. numpy lets other threads run meanwhile."""
    plain = content.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in content else content
    characters = np.frombuffer(plain, dtype=np.uint8)
    is_in_text = np.bitwise_xor.accumulate(characters == _QUOTE)
    return int(np.count_nonzero((characters == _COMMA) & ~is_in_text)) + 1
