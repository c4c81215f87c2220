"""Truncates sequences that are too long."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from embedserve_runtime.errors import ConfigError
from embedserve_runtime.forward.arrays import Int32Array

Side = Literal["left", "right"]


class TruncationRules(Struct, frozen=True):
    """The treatment of inputs longer than the model takes: they are refused, or truncated on one side.

    max_length: replaces the model's length for single texts where it is lower.
    min_second: for pairs: only the second text is truncated as long as `min_second` of its tokens stay; None truncates
    the longer text first.
    """

    truncate: bool
    side: Side = "right"
    max_length: int | None = None
    min_second: int | None = None


def build_no_room_error(max_length: int, what: str) -> ConfigError:
    """Create the error of a length that is too short for any text. what: that takes the room."""
    return ConfigError(
        f"max_length {max_length} leaves no room {what}; it comes from model.max_length, else from the model's "
        "sentence_bert_config.json, tokenizer_config.json or config.json"
    )


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


def truncate_second_first(first: int, second: int, room: int, min_second: int) -> tuple[int, int]:
    """Return how many tokens of each text of a pair stay, together at most `room`.

    The second text is cut first. Where fewer than `min_second` of its tokens would stay, or fewer than half of the room
    if that is less, the first is cut for them.
    """
    second_length = max(min(second, room - first), min(second, min_second, room // 2))
    return min(first, room - second_length), second_length
