"""A picture of what autoscalers did: for each kind of traffic the pods that it needed, and those that there were."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

import numpy as np
from numpy.typing import NDArray

from benchmarks.autoscaler_model import HOUR, Outcome

_WIDTH, _HEIGHT, _MARGIN, _GAP = 720, 130, 44, 44
_COLOURS = ("#0b6fb8", "#c2410c", "#15803d")
_POINTS = 360


def draw(outcomes: Mapping[str, Mapping[str, Outcome]], rate: float) -> str:
    """SVG; `outcomes` by policy and by traffic, `rate` inputs a second of one pod."""
    kinds = list(next(iter(outcomes.values())))
    height = _GAP + len(kinds) * (_HEIGHT + _GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH + 2 * _MARGIN} {height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    for number, name in enumerate(outcomes):
        x = _MARGIN + number * 200
        parts.append(f'<rect x="{x}" y="10" width="14" height="4" fill="{_COLOURS[number]}"/>')
        parts.append(f'<text x="{x + 20}" y="16">pods by {escape(name)}</text>')
    parts.append(f'<rect x="{_MARGIN + len(outcomes) * 200}" y="6" width="14" height="12" fill="#e2e2e2"/>')
    parts.append(f'<text x="{_MARGIN + len(outcomes) * 200 + 20}" y="16">pods that the load needs</text>')
    for row, kind in enumerate(kinds):
        parts += _panel(kind, {name: found[kind] for name, found in outcomes.items()}, rate, row)
    return "\n".join([*parts, "</svg>", ""])


def _panel(kind: str, outcomes: Mapping[str, Outcome], rate: float, row: int) -> list[str]:
    top = _GAP + row * (_HEIGHT + _GAP)
    needed = next(iter(outcomes.values())).arrivals / rate
    highest = max(8.0, *(float(found.pods.max()) for found in outcomes.values()))
    base = top + _HEIGHT
    area = (
        f"{_line(np.minimum(needed, highest), highest, top)} L{_MARGIN + _WIDTH} {base} L{_MARGIN} {base} Z"
    )
    parts = [
        f'<text x="{_MARGIN}" y="{top - 6}" font-weight="bold">{escape(kind)}</text>',
        f'<path d="{area}" fill="#e2e2e2"/>',
    ]
    for colour, found in zip(_COLOURS, outcomes.values(), strict=False):
        path = _line(found.pods, highest, top)
        parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
    parts.append(f'<path d="M{_MARGIN} {top} V{base} H{_MARGIN + _WIDTH}" fill="none" stroke="#555555"/>')
    parts.append(f'<text x="{_MARGIN - 6}" y="{top + 10}" text-anchor="end">{highest:.0f}</text>')
    hours = len(needed) / HOUR
    parts.append(f'<text x="{_MARGIN + _WIDTH}" y="{base + 14}" text-anchor="end">{hours:g} h</text>')
    return parts


def _line(values: NDArray[np.float64], highest: float, top: float) -> str:
    """A path through means over equal stretches of time."""
    stretches = np.array_split(values, _POINTS)
    points = (
        f"{_MARGIN + number * _WIDTH / (_POINTS - 1):.1f} {top + _HEIGHT * (1 - float(found.mean()) / highest):.1f}"
        for number, found in enumerate(stretches)
    )
    return "M" + " L".join(points)
