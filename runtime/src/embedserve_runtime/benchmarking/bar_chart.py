"""Renders horizontal bar charts as SVG, by hand: the image has no drawing library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

LINE_HEIGHT, LABEL_WIDTH, BAR_WIDTH, VALUE_WIDTH = 26, 240, 420, 110
COLOURS = ("#1f6f8b", "#c97b2e", "#7a8b99", "#5b8c5a", "#8b5b7a")


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a bar chart.

    colour: the number of its series. note: a text after the value.
    """

    label: str
    value: float
    colour: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class BarGroup:
    """Bars under their own title."""

    title: str
    rows: Sequence[Bar]


def render_bar_chart(title: str, groups: Sequence[BarGroup]) -> str:
    """Render one line for each bar; the longest bar has the full width. Values are printed as whole numbers."""
    longest = max((bar.value for group in groups for bar in group.rows), default=0.0) or 1.0
    height = LINE_HEIGHT * (len(groups) + sum(len(group.rows) for group in groups) + 2)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LABEL_WIDTH + BAR_WIDTH + VALUE_WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="10" y="{LINE_HEIGHT - 6}" font-weight="bold">{escape(title)}</text>',
    ]
    top = LINE_HEIGHT + 6
    for group in groups:
        lines.append(
            f'<text x="10" y="{top + 14}" fill="#444444" font-style="italic">{escape(group.title)}</text>'
        )
        for bar in group.rows:
            top += LINE_HEIGHT
            lines += _render_bar(bar, top, BAR_WIDTH * bar.value / longest)
        top += LINE_HEIGHT
    return "\n".join([*lines, "</svg>", ""])


def _render_bar(bar: Bar, top: int, width: float) -> list[str]:
    colour = COLOURS[bar.colour % len(COLOURS)]
    return [
        f'<text x="{LABEL_WIDTH - 8}" y="{top + 14}" text-anchor="end">{escape(bar.label)}</text>',
        f'<rect x="{LABEL_WIDTH}" y="{top}" width="{width:.1f}" height="{LINE_HEIGHT - 8}" fill="{colour}"/>',
        f'<text x="{LABEL_WIDTH + width + 6:.1f}" y="{top + 14}">{bar.value:,.0f}{escape(bar.note)}</text>',
    ]
