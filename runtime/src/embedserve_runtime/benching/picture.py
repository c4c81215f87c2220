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


@dataclass(frozen=True, slots=True)
class BarGroup:
    """Bars under a title of their own."""

    title: str
    rows: Sequence[Bar]


def bars(title: str, groups: Sequence[BarGroup]) -> str:
    """One line a bar, the longest of all as wide as the picture allows. Values are printed as whole numbers."""
    longest = max((bar.value for group in groups for bar in group.rows), default=0.0) or 1.0
    height = LINE * (len(groups) + sum(len(group.rows) for group in groups) + 2)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LABEL + WIDE + VALUE}" height="{height}" '
        'font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="10" y="{LINE - 6}" font-weight="bold">{escape(title)}</text>',
    ]
    top = LINE + 6
    for group in groups:
        lines.append(
            f'<text x="10" y="{top + 14}" fill="#444444" font-style="italic">{escape(group.title)}</text>'
        )
        for bar in group.rows:
            top += LINE
            lines += _drawn(bar, top, WIDE * bar.value / longest)
        top += LINE
    return "\n".join([*lines, "</svg>", ""])


def _drawn(bar: Bar, top: int, width: float) -> list[str]:
    colour = COLOURS[bar.colour % len(COLOURS)]
    return [
        f'<text x="{LABEL - 8}" y="{top + 14}" text-anchor="end">{escape(bar.label)}</text>',
        f'<rect x="{LABEL}" y="{top}" width="{width:.1f}" height="{LINE - 8}" fill="{colour}"/>',
        f'<text x="{LABEL + width + 6:.1f}" y="{top + 14}">{bar.value:,.0f}{escape(bar.note)}</text>',
    ]
