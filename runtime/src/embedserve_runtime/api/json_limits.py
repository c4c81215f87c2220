"""Bounds the number of values and arrays in a JSON body before it is parsed.

Parsing creates an object for each value while it holds the interpreter: 16 MB of token ids, five million of them, stop
the event loop for seconds, only to be refused for their number.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import numpy as np

from embedserve_runtime.errors import BatchTooLarge

_QUOTE = ord('"')


MIN_JSON_BOUND = 10_000
"""So many are parsed in a few milliseconds, whatever the queue has room for."""
MAX_JSON_VALUES = 131_072
"""So many numbers are parsed and checked in some 30 milliseconds, during which the event loop does nothing else."""


class JsonBounds(NamedTuple):
    """The bounds on the number of values and arrays in one body.

    max_values: numbers and texts. max_arrays: inputs as token ids are arrays within arrays.
    """

    max_values: int = MAX_JSON_VALUES
    max_arrays: int = 80_000


async def check_json_size(content: bytes, bounds: JsonBounds) -> None:
    """Raise BatchTooLarge for a body with more commas or opening brackets outside of texts than the bounds allow.

    Few bodies have so many of them at all; for those that have, a thread tells those in texts from the others.
    """
    signs = (b",", bounds.max_values, "values"), (b"[", bounds.max_arrays, "arrays")
    for sign, allowed, name in signs:
        if content.count(sign) <= allowed:
            continue
        count = await asyncio.to_thread(_count_outside_texts, content, sign)
        if count > allowed:
            raise BatchTooLarge(f"the body has more than {allowed} {name}; send fewer at a time")


def _count_outside_texts(content: bytes, sign: bytes) -> int:
    """Count how often a character stands outside of JSON's texts. numpy lets other threads run meanwhile."""
    plain = content.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in content else content
    characters = np.frombuffer(plain, dtype=np.uint8)
    is_in_text = np.bitwise_xor.accumulate(characters == _QUOTE)
    return int(np.count_nonzero((characters == ord(sign)) & ~is_in_text))
