"""Truncates sequences that are too long."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from embedserve_runtime.engines.base import Int32Array

Side = Literal["left", "right"]


class TruncationRules(Struct, frozen=True):
    """Says what happens to inputs longer than the model takes: they are refused, or truncated on one side."""

    truncate: bool
    side: Side = "right"


def truncate_ids(ids: Int32Array, length: int, side: Side) -> Int32Array:
    """Return at most `length` of the ids; the others are cut off on `side`."""
    return ids[:length] if side == "right" else ids[max(0, len(ids) - length) :]


def truncate_longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Return how many tokens of each text of a pair stay, together at most `room`.

    The longer text is cut until both are equally long, then both; an odd token goes to the longer one, or to the
    second of two equal ones. Source: `truncate_encodings` of the library tokenizers, strategy `longest_first`,
    which transformers uses for `truncation=True`.
    """
    if first + second <= room:
        return first, second
    short = min(first, second, room // 2)
    return (room - short, short) if first > second else (short, room - short)
