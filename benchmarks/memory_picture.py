"""A picture of the memory that a server takes over time, with its plan and its limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from embedserve_runtime.memory.sizes import MIB

_WIDTH, _HEIGHT, _LEFT, _TOP = 720, 260, 64, 40
_POINTS = 480
_LINES = {"limit": "#c2410c", "plan": "#15803d"}


@dataclass(frozen=True, slots=True)
class MemoryCurve:
    """Resident bytes of a server, one sample after another. seconds: between two samples. plan, limit: bytes."""

    title: str
    samples: Sequence[int]
    seconds: float
    plan: int
    limit: int


def draw(curve: MemoryCurve) -> str:
    """Return the curve as SVG; each point is the greatest of its stretch of time."""
    highest = 1.1 * curve.limit
    stretches = np.array_split(np.array(curve.samples), min(_POINTS, len(curve.samples)))
    step = _WIDTH / max(1, len(stretches) - 1)
    points = " L".join(
        f"{_LEFT + number * step:.1f} {_find_height(int(stretch.max()), highest):.1f}"
        for number, stretch in enumerate(stretches)
    )
    base, right = _TOP + _HEIGHT, _LEFT + _WIDTH
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {right + 90} {base + 30}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="20" font-weight="bold">{escape(curve.title)}: resident memory</text>',
        f'<path d="M{points}" fill="none" stroke="#0b6fb8" stroke-width="1.2"/>',
        f'<path d="M{_LEFT} {_TOP} V{base} H{right}" fill="none" stroke="#555555"/>',
        f'<text x="{_LEFT - 6}" y="{base}" text-anchor="end">0</text>',
        f'<text x="{right}" y="{base + 16}" text-anchor="end">{curve.seconds * len(curve.samples) / 60:.0f} min</text>',
    ]
    for name, size in {"limit": curve.limit, "plan": curve.plan}.items():
        height = _find_height(size, highest)
        parts.append(
            f'<path d="M{_LEFT} {height:.1f} H{right}" stroke="{_LINES[name]}" stroke-dasharray="4 3"/>'
        )
        parts.append(f'<text x="{right + 6}" y="{height + 4:.1f}">{name} {size // MIB:,} MiB</text>')
    return "\n".join([*parts, "</svg>", ""])


def _find_height(size: int, highest: float) -> float:
    """Return the height of a size in the picture."""
    return _TOP + _HEIGHT * (1 - size / highest)
