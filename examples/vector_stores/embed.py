"""What all the examples ask of Embedserve."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx

TEXTS = (
    "A vector is a list of numbers.",
    "The cat sits on the warm windowsill.",
    "Bread is baked from flour, water and salt.",
    "Two vectors are compared by the angle between them.",
)
QUERY = "How are lists of numbers compared?"

Hit = tuple[str, float]


def encode(address: str, texts: Sequence[str], **options: Any) -> Mapping[str, Any]:
    """The answer of `POST /v1/encode`: an item of `dense`, `sparse` or `multi_vector` for each text, whichever the
    served model is for."""
    answer = httpx.post(f"{address}/v1/encode", json={"inputs": list(texts), **options}, timeout=60)
    answer.raise_for_status()
    content: Mapping[str, Any] = answer.json()
    return content


def run(search: Callable[[str], Any]) -> None:
    """Search at the address that the command line has, and print what was found as JSON."""
    print(json.dumps(search(sys.argv[1])))
