"""The torch engine on one GPU: tokens/s, the share of the matrix-product peak, and how far 16 bit is from float32.

    python -m benchmarks.gpu [--rounds N] [--results FOLDER]

BERT-base shape (12 x 768), random weights, bfloat16. The peak is the best of three large products measured in the same
run. Parity is the least cosine of mean-pooled vectors to those of the same engine in float32. Writes
`<results>/<gpu>.json`. Needs torch with CUDA.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import numpy as np
import torch
import transformers

from benchmarks.packing import flops, log_uniform, random_batch
from embedserve_runtime.engines.torch.engine import TorchEngine
from embedserve_runtime.heads.dense import normalize, pool
from embedserve_runtime.model import families
from embedserve_runtime.model.checkpoint import Checkpoint, Weights
from embedserve_runtime.model.pipeline import Pooling
from tests.support.models import tiny_bert

CASES = {
    "32 x 512": np.full(32, 512),
    "256 x 128": np.full(256, 128),
    "512 x 50": np.full(512, 50),
    "256 texts of 5 to 500": log_uniform(256, 5, 500),
    "1 x 16": np.full(1, 16),
}
BASE = {
    "vocab_size": 30_522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "initializer_range": 0.02,
}
DEVICE = torch.device("cuda")


def seconds(work: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def peak_flops() -> float:
    """Operations a second of the best large bfloat16 product."""
    best = 0.0
    for size in (4096, 8192, 16384):
        left = torch.randn(size, size, device=DEVICE, dtype=torch.bfloat16)
        right = torch.randn(size, size, device=DEVICE, dtype=torch.bfloat16)
        left @ right
        best = max(best, *(2 * size**3 / seconds(lambda a=left, b=right: a @ b) for _ in range(5)))  # type: ignore[misc]
    return best


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tiny_bert(Path(folder), **BASE)
        encoder = families.describe(Path(folder))
        weights = Weights(encoder, Checkpoint.open(Path(folder)))
        engine = TorchEngine(encoder, weights, DEVICE, torch.bfloat16)
        exact = TorchEngine(encoder, weights, DEVICE, torch.float32)
    peak = peak_flops()
    rows = []
    for name, lengths in CASES.items():
        batch = random_batch(lengths)
        vectors, want = (
            normalize(pool(e.forward(batch), batch.cu_seqlens, Pooling.MEAN)) for e in (engine, exact)
        )
        taken = median(seconds(lambda b=batch: engine.forward(b)) for _ in range(arguments.rounds))  # type: ignore[misc]
        rows.append(
            {
                "work": name,
                "tokens": batch.tokens,
                "milliseconds": round(1e3 * taken, 3),
                "tokens_per_second": round(batch.tokens / taken),
                "share_of_peak": round(flops(encoder, lengths) / taken / peak, 3),
                "least_cosine_to_float32": round(float((vectors * want).sum(axis=1).min()), 6),
            }
        )
    result = {
        "gpu": torch.cuda.get_device_name(),
        "date": datetime.now(UTC).date().isoformat(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "kernel": engine.kernel.value,
        "peak_tflops": round(peak / 1e12),
        "rows": rows,
    }
    arguments.results.mkdir(parents=True, exist_ok=True)
    file = arguments.results / f"{torch.cuda.get_device_name().replace(' ', '-')}.json"
    file.write_text(json.dumps(result, indent=1) + "\n")
    print(
        f"{result['gpu']}, torch {torch.__version__}, {result['kernel']}, peak {result['peak_tflops']} TFLOP/s"
    )
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in row.items()))


if __name__ == "__main__":
    main()
