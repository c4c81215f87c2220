"""MiniLM's tokenizer for tiny models that are made in a test, whole and cut."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path

from tests.support.models import minilm_folder

CUT_VOCABULARY = 3_000


def with_minilm_tokenizer(folder: Path) -> Path:
    """Put MiniLM's tokenizer (30,522 tokens) beside the model in `folder`."""
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        shutil.copy(minilm_folder() / name, folder)
    return folder


def with_cut_tokenizer(folder: Path) -> Path:
    """Put the beginning of MiniLM's tokenizer beside the model in `folder`: letters, signs and the most frequent words
    with the ids that they have there; a tenth of the vocabulary, and of the time to load it."""
    (folder / "tokenizer.json").write_text(_cut())
    shutil.copy(minilm_folder() / "tokenizer_config.json", folder)
    return folder


@cache
def _cut() -> str:
    content = json.loads((minilm_folder() / "tokenizer.json").read_text())
    words = content["model"]["vocab"]
    content["model"]["vocab"] = {token: number for token, number in words.items() if number < CUT_VOCABULARY}
    return json.dumps(content)
