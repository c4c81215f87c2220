"""Prints tables: drawn on a terminal, plain lines elsewhere, which programs may cut apart."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.table import Table

FactRow = tuple[str, Sequence[str]]
"""A name and the lines of its value."""


def is_drawing_terminal(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that can move its cursor and draw lines."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def print_table(out: TextIO, plain: str, build_table: Callable[[], Table]) -> None:
    """Print a table: on a terminal what `build_table` builds, as wide as the terminal, else the plain text.

    Colours are left out where NO_COLOR asks for that.
    """
    if not is_drawing_terminal(out):
        out.write(plain)
        return
    # Imported here: only terminals need it.
    from rich.console import Console

    Console(file=out).print(build_table())


def build_fact_table(rows: Sequence[FactRow]) -> Table:
    """Build a table of names and values. Values are shown as they are, not read as markup."""
    # Imported here: only terminals need it.
    from rich.box import ROUNDED
    from rich.table import Table
    from rich.text import Text

    table = Table(box=ROUNDED, show_header=False, border_style="dim")
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, lines in rows:
        table.add_row(Text(name), Text("\n".join(lines)))
    return table


def build_column_table(heads: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str]) -> Table:
    """Build a table with a head. right: the heads of columns that are aligned to the right."""
    # Imported here: only terminals need it.
    from rich.box import ROUNDED
    from rich.table import Table
    from rich.text import Text

    table = Table(box=ROUNDED, header_style="bold", border_style="dim")
    for head in heads:
        table.add_column(head, justify="right" if head in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table
