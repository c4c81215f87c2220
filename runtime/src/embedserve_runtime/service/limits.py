"""Refuses requests whose results would take too much memory, before any work is done for them."""

from __future__ import annotations

from collections.abc import Sequence

from embedserve_runtime.errors import BatchTooLarge
from embedserve_runtime.model.card import ModelCard
from embedserve_runtime.tokenizing import Input

# For requests whose tokens are listed one by one: some 200 MB of objects.
MAX_LISTED_CHARACTERS = 1_000_000


def check_listing_size(inputs: Sequence[Input]) -> None:
    """Raise BatchTooLarge for texts whose tokens are too many to list: each takes a Python object."""
    characters = sum(map(len, inputs))
    if characters > MAX_LISTED_CHARACTERS:
        raise BatchTooLarge(
            f"a request that lists tokens, or splits texts into chunks, takes {MAX_LISTED_CHARACTERS} characters "
            f"together, got {characters}; send fewer or shorter inputs"
        )


def check_hidden_size(card: ModelCard, tokens: int, max_bytes: int) -> None:
    """Raise BatchTooLarge where the states of `tokens` tokens take more than `max_bytes`."""
    size = tokens * card.encoder.hidden_size * 4
    if size > max_bytes:
        raise BatchTooLarge(
            f"the states of {tokens} tokens take {size} bytes; one request may ask for {max_bytes}. Send fewer or "
            "shorter inputs"
        )
