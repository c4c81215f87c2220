"""Horizontal bars as SVG, written by hand: no drawing library is in the image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

LINE, LABEL, WIDE, VALUE = 26, 240, 420, 110
COLOURS = ("#1f6f8b", "#c97b2e", "#7a8b99", "#5b8c5a", "#8b5b7a")


@dataclass(frozen=True, slots=True)
class Bar:
    """colour: number of the series that it belongs to. note: behind the value."""

    label: str
    value: float
    colour: int = 0
    note: str = ""


def bars(title: str, rows: Sequence[Bar]) -> str:
    """One line a bar, the longest as wide as the picture allows."""
    longest = max((bar.value for bar in rows), default=0.0) or 1.0
    height = LINE * (len(rows) + 2)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LABEL + WIDE + VALUE}" height="{height}" '
        'font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="10" y="{LINE - 6}" font-weight="bold">{escape(title)}</text>',
    ]
    for number, bar in enumerate(rows):
        top = LINE * (number + 1) + 6
        width = WIDE * bar.value / longest
        colour = COLOURS[bar.colour % len(COLOURS)]
        lines += [
            f'<text x="{LABEL - 8}" y="{top + 14}" text-anchor="end">{escape(bar.label)}</text>',
            f'<rect x="{LABEL}" y="{top}" width="{width:.1f}" height="{LINE - 8}" fill="{colour}"/>',
            f'<text x="{LABEL + width + 6:.1f}" y="{top + 14}">{bar.value:,.4g}{escape(bar.note)}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])
