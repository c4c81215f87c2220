"""A tokenizer for tiny models that are made in a test."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.models import minilm_folder


def with_minilm_tokenizer(folder: Path) -> Path:
    """Put MiniLM's tokenizer (30,522 tokens) beside the model in `folder`."""
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        shutil.copy(minilm_folder() / name, folder)
    return folder
