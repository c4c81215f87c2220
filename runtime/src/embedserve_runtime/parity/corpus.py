"""Texts that reduced precision is tried with and, others, that it is calibrated with: written for this, in some 20
scripts and languages, from one word to some hundreds."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

import numpy as np

# What the texts are called where a measure is told.
PARITY_TEXTS_NAME = "parity/texts/parity.txt"
# Lines that follow each other, joined to longer texts: how many lines a text has, from the shortest on.
RUNS = (2, 3, 5, 8, 13)
PARITY_TEXTS = 128
CALIBRATION_TEXTS = 88
# Texts that are tried however large the model is.
MIN_TEXTS = 32


def read_parity_texts() -> list[str]:
    return _read_texts("parity.txt", PARITY_TEXTS)


def read_calibration_texts() -> list[str]:
    return _read_texts("calibration.txt", CALIBRATION_TEXTS)


def pair_texts(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Pair each text with the one after it, as query and document."""
    return list(zip(texts, [*texts[1:], *texts[:1]], strict=True))


def choose_evenly(lengths: Sequence[int], tokens: int) -> list[int]:
    """Choose texts, by their indices, where all are too many: as many as together have at most `tokens` tokens, but
    MIN_TEXTS at least, with lengths spread like those of all. In the order of their lengths."""
    by_length = np.argsort(lengths, kind="stable")
    for count in range(len(lengths), MIN_TEXTS, -1):
        selection = by_length[np.arange(count) * len(lengths) // count]
        if np.take(lengths, selection).sum() <= tokens:
            return [*map(int, selection)]
    count = min(MIN_TEXTS, len(lengths))
    return [*map(int, by_length[np.arange(count) * len(lengths) // count])]


def _read_texts(name: str, count: int) -> list[str]:
    """Read up to `count` texts: each line alone, then runs of lines."""
    content = files("embedserve_runtime.parity") / "texts" / name
    lines = content.read_text(encoding="utf-8").splitlines()
    texts, start = list(lines), 0
    while len(texts) < count:
        length = RUNS[len(texts) % len(RUNS)]
        texts.append(" ".join(lines[(start + offset) % len(lines)] for offset in range(length)))
        start += length
    return texts
