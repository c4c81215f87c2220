"""Provides the texts of benchmarks."""

from __future__ import annotations

import math
import random
from pathlib import Path

from embedserve_runtime.errors import ConfigError

MIX_TEXTS = 256
MIN_WORDS, MAX_WORDS = 4, 200
VOCABULARY = (
    "the of and in to a is for with on as by that are this from it at be was which an or its these not "
    "can have model text query document search answer question value system result method data language "
    "network memory server request energy market city river history school music doctor garden weather "
    "paper number letter"
)


def read_texts(file: Path) -> list[str]:
    """Read one text from each line; blank lines are left out. Raises ConfigError."""
    try:
        texts = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the texts cannot be read from {file}: {error}") from error
    if not texts:
        raise ConfigError(f"{file} has no texts: put one on each line")
    return texts


def build_mix(count: int = MIX_TEXTS) -> list[str]:
    """Build the same texts at every call: as many of 4 to 8 words as of 100 to 200, in no order."""
    chance = random.Random(7)
    bounds = math.log(MIN_WORDS), math.log(MAX_WORDS + 1)
    words = VOCABULARY.split()
    lengths = [int(math.exp(chance.uniform(*bounds))) for _ in range(count)]
    return [" ".join(chance.choice(words) for _ in range(length)) for length in lengths]
