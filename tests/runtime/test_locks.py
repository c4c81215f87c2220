"""The CUDA image installs what the CPU image does, and torch: its lock is made by hand of the same pyproject."""

from __future__ import annotations

import re
from pathlib import Path

REQUIREMENTS = Path(__file__).parents[2] / "requirements"


def pins(name: str) -> set[str]:
    return set(re.findall(r"^([a-z0-9-]+==\S+)", (REQUIREMENTS / name).read_text(), re.MULTILINE))


def test_the_lock_of_the_cuda_image_has_every_pin_of_the_other_one() -> None:
    assert pins("runtime.txt") - pins("cuda.txt") == set()
    assert any(pin.startswith("torch==") for pin in pins("cuda.txt"))
