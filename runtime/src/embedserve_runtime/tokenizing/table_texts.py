"""Describes how texts are tokenized for a table of token vectors, which is faster than any tokenizer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TableTexts:
    """The rules by which texts for a table are tokenized, where they differ.

    empty_text_id: the id that stands for a text without tokens; None refuses such a text.
    max_characters: how much of a text with its prompt is read, where it is truncated on the right; None for all.
    """

    empty_text_id: int | None = None
    max_characters: int | None = None


NO_TABLE = TableTexts()
