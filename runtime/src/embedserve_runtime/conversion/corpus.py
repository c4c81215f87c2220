"""Texts that variants are tried with and, others, that they are calibrated with: written for this, in some 20 scripts
and languages, from one word to some hundreds."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

# Lines that follow each other, joined to longer texts: how many lines a text has, from the shortest on.
RUNS = (2, 3, 5, 8, 13)
PARITY_TEXTS = 128
CALIBRATION_TEXTS = 88


def parity_texts() -> list[str]:
    return _texts("parity.txt", PARITY_TEXTS)


def calibration_texts() -> list[str]:
    return _texts("calibration.txt", CALIBRATION_TEXTS)


def pairs_of(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Each text and the one after it, as query and document."""
    return list(zip(texts, [*texts[1:], *texts[:1]], strict=True))


def _texts(name: str, count: int) -> list[str]:
    """Each line alone, then runs of lines, up to `count` texts."""
    content = files("embedserve_runtime.conversion") / "texts" / name
    lines = content.read_text(encoding="utf-8").splitlines()
    texts, start = list(lines), 0
    while len(texts) < count:
        length = RUNS[len(texts) % len(RUNS)]
        texts.append(" ".join(lines[(start + place) % len(lines)] for place in range(length)))
        start += length
    return texts
