"""`embedserve self-test`: checks that this installation is complete and computes correctly.

A small encoder with random weights runs on every engine and every GPU, and all must agree; nothing is fetched. What
could not be checked is named with the reason.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import numpy as np
from safetensors.numpy import save_file

from embedserve_runtime.engines.checks import Check, CheckStatus, compare_hidden_states
from embedserve_runtime.engines.onnx.engine import OnnxEngine
from embedserve_runtime.engines.torch import support as torch_support
from embedserve_runtime.errors import EmbedserveError
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.model import families
from embedserve_runtime.model.checkpoint import Checkpoint, Weights
from embedserve_runtime.model.folder import read_folder

# Widths are multiples of 16, so that it can run in 8 bit.
CONFIG = {
    "model_type": "bert",
    "vocab_size": 100,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
}
LENGTHS = (1, 7, 64, 20)
# Between a text alone and the same text in a batch, both in float32.
MIN_COSINE = 0.999999


def run(out: TextIO) -> int:
    """Print a line for each check; return 1 where one has failed."""
    failed = 0
    for check in run_checks():
        out.write(f"{check.status:11}  {check.name}: {check.detail}\n")
        out.flush()
        failed += check.status is CheckStatus.FAILED
    return 1 if failed else 0


def run_checks() -> Iterator[Check]:
    """Run the checks one after another, as they are consumed."""
    with tempfile.TemporaryDirectory(prefix="embedserve-self-test-") as name:
        folder = Path(name)
        save_checkpoint(folder)
        encoder = families.describe(read_folder(folder))
        weights = Weights(encoder, Checkpoint.open(folder))
        source = np.random.default_rng(1)
        texts = [source.integers(0, 100, length).astype(np.int32) for length in LENGTHS]
        batch = PackedBatch.pack(texts)
        try:
            engine = OnnxEngine.build(encoder, weights, threads=1)
            together = engine.forward(batch)
            alone = np.concatenate([engine.forward(PackedBatch.pack([text])) for text in texts])
            yield compare_hidden_states("onnx engine, texts alone and together", alone, together, MIN_COSINE)
            reason = torch_support.find_obstacle()
            if reason is not None:
                yield Check("torch engine", CheckStatus.NOT_CHECKED, reason)
                return
            # Imported here: torch is an extra.
            from embedserve_runtime.engines.torch.checks import run_torch_checks

            yield from run_torch_checks(encoder, weights, batch, together)
        except EmbedserveError as error:
            yield Check("engine", CheckStatus.FAILED, error.message)


def save_checkpoint(folder: Path) -> None:
    """Write a BERT checkpoint with the shapes of `CONFIG`."""
    source = np.random.default_rng(0)
    tensors: dict[str, FloatArray] = {}

    def matrix(name: str, rows: int, columns: int) -> None:
        tensors[f"{name}.weight"] = source.normal(0, 0.1, (rows, columns)).astype(np.float32)

    def linear(name: str, rows: int, columns: int) -> None:
        matrix(name, rows, columns)
        tensors[f"{name}.bias"] = source.normal(0, 0.1, rows).astype(np.float32)

    def norm(name: str) -> None:
        tensors[f"{name}.weight"] = source.normal(1, 0.1, 64).astype(np.float32)
        tensors[f"{name}.bias"] = source.normal(0, 0.1, 64).astype(np.float32)

    for table, rows in (("word", 100), ("position", 64), ("token_type", 2)):
        matrix(f"embeddings.{table}_embeddings", rows, 64)
    norm("embeddings.LayerNorm")
    for number in range(2):
        layer = f"encoder.layer.{number}"
        for part in ("query", "key", "value"):
            linear(f"{layer}.attention.self.{part}", 64, 64)
        linear(f"{layer}.attention.output.dense", 64, 64)
        norm(f"{layer}.attention.output.LayerNorm")
        linear(f"{layer}.intermediate.dense", 128, 64)
        linear(f"{layer}.output.dense", 64, 128)
        norm(f"{layer}.output.LayerNorm")
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
