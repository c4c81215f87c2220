"""Bounds on how many values and arrays a JSON body may have, which are checked before it is parsed.

Parsing makes an object of each value while the interpreter is held: 16 MB of token ids, five million of them, stop the
event loop for seconds, only to be refused for their number.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import numpy as np

from embedserve_runtime.errors import BatchTooLarge

_QUOTE = ord('"')


class JsonBounds(NamedTuple):
    """Of one body. max_values: numbers and texts. max_arrays: inputs as token ids are arrays within arrays."""

    max_values: int = 1_000_000
    max_arrays: int = 40_000


async def check_json_size(content: bytes, bounds: JsonBounds) -> None:
    """Raises BatchTooLarge for a body with more commas or opening brackets outside of texts than the bounds allow.

    Few bodies have so many of them at all; of those that have, texts full of them are told from arrays in a thread.
    """
    signs = (b",", bounds.max_values, "values"), (b"[", bounds.max_arrays, "arrays")
    for sign, allowed, name in signs:
        if content.count(sign) <= allowed:
            continue
        count = await asyncio.to_thread(_count_outside_texts, content, sign)
        if count > allowed:
            raise BatchTooLarge(f"the body has more than {allowed} {name}; send fewer at a time")


def _count_outside_texts(content: bytes, sign: bytes) -> int:
    """The number of times that a character stands outside of JSON's texts. numpy lets other threads run meanwhile."""
    plain = content.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in content else content
    characters = np.frombuffer(plain, dtype=np.uint8)
    is_in_text = np.bitwise_xor.accumulate(characters == _QUOTE)
    return int(np.count_nonzero((characters == ord(sign)) & ~is_in_text))
