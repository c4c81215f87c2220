"""A small repository, big enough to come in parts, and what must be true of a store that it was fetched into."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path

from embedserve_runtime.config import ModelSettings
from embedserve_runtime.errors import EmbedserveError
from embedserve_runtime.sources import fetch_model, open_model
from embedserve_runtime.sources.host_limits import RetryPolicy
from embedserve_runtime.store.checking import find_damage

REPOSITORY = "lab/model"
WEIGHTS = "model.safetensors"
QUICK = RetryPolicy(first_pause_s=0.01, max_pause_s=0.05, default_wait_s=0.05, read_s=5.0)
CONFIG = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "intermediate_size": 8,
    "vocab_size": 8,
    "max_position_embeddings": 8,
}


def write_repository(root: Path, weight_bytes: int, seed: int = 0) -> dict[str, bytes]:
    """Files that are fetched, none of which is ever run: only their bytes count. Gives them by their paths."""
    files = {
        "config.json": json.dumps({**CONFIG, "seed": seed}).encode(),
        "tokenizer.json": b'{"version": "1.0"}',
        "1_Pooling/config.json": b"{}",
        WEIGHTS: random.Random(seed).randbytes(weight_bytes),
    }
    for name, content in {**files, "NOTES.md": b"no", "onnx/model.onnx": b"no"}.items():
        path = root / REPOSITORY / "main" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return files


def content_of(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def is_good(settings: ModelSettings, files: dict[str, bytes]) -> bool:
    """Return whether a server would start from the store alone; if so, what it would get must be right."""
    offline = ModelSettings.model_validate({**settings.model_dump(), "offline": True})
    try:
        located = open_model(offline)
    except EmbedserveError:
        return False
    assert content_of(located.folder) == files
    return True


def assert_fetched(settings: ModelSettings, files: dict[str, bytes]) -> None:
    """The end state of a fetch that went well: the model, and nothing else."""
    assert is_good(settings, files)
    assert list(find_damage(settings.store)) == []
    assert not list((settings.store / "staging").iterdir()), "nothing is left of what was tried"
    blobs = {path.name for path in (settings.store / "blobs").iterdir()}
    assert blobs == {hashlib.sha256(content).hexdigest() for content in files.values()}


def fetch(settings: ModelSettings, retry_policy: RetryPolicy = QUICK) -> None:
    fetch_model(settings, retry_policy=retry_policy)
