"""Long texts on one GPU: the engine with its own attention, and with flash-attn-4 where that is timed to be faster.

    python -m benchmarks.gpu_long_texts [--only WORD]

Random weights in the shapes of known models, bfloat16, from packed token ids on the host to pooled rows on the host.
For each batch three engines take turns, round by round: our attention alone (`fused`), what the engine takes by itself
(`auto`: a timing at start decides), and flash-attn-4 for every batch (`flash`). Prints tokens/s (medians of the
rounds), the ratio to `fused`, and the least cosine of its vectors. Needs torch with CUDA and the extra `flash`.
"""

from __future__ import annotations

import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch

from benchmarks.command_line import add_selection, parser_of
from benchmarks.gpu import BURST_SECONDS, Loaded, rate
from benchmarks.gpu_shapes import BGE_M3, MODERNBERT, QWEN3, Lengths, Shape
from benchmarks.packing import random_batch
from embedserve_runtime.engines.torch.engine import ForwardOptions
from embedserve_runtime.engines.torch.kernels import KernelKind
from embedserve_runtime.heads.dense import normalize
from embedserve_runtime.model import families
from embedserve_runtime.model.checkpoint import Checkpoint, Weights
from embedserve_runtime.model.folder import read_folder

ROUNDS = 7
KERNELS = {"fused": KernelKind.FUSED, "auto": None, "flash": KernelKind.FLASH}


@dataclass(frozen=True, slots=True)
class Work:
    """lengths: of the texts of a batch, for each of which a rate is measured."""

    shape: Shape
    lengths: tuple[Lengths, ...]


WORKS = (
    Work(MODERNBERT, (np.full(8, 8192), np.full(16, 2048))),
    Work(QWEN3, (np.full(8, 4096), np.full(16, 1024))),
    Work(BGE_M3, (np.full(4, 8192), np.full(16, 2048))),
)


def measure(work: Work, folder: Path) -> None:
    work.shape.save(folder)
    encoder = families.describe(read_folder(folder))
    weights = Weights(encoder, Checkpoint.open(folder))
    loaded: dict[str, Loaded] = {}
    for name, kernel in KERNELS.items():
        try:
            loaded[name] = Loaded(encoder, weights, work.shape, torch.bfloat16, ForwardOptions(kernel))
        except Exception as error:  # noqa: BLE001 -- a kernel that cannot run is a row of the result
            print(f"{work.shape.name:16} {name:6} cannot run: {type(error).__name__}: {error}", flush=True)
            continue
        print(f"{work.shape.name:16} {name:6} attention: {loaded[name].description.attention}", flush=True)
    for lengths in work.lengths:
        batch = random_batch(lengths)
        vectors = {name: normalize(one.run(batch)) for name, one in loaded.items()}
        rates: dict[str, list[float]] = {name: [] for name in loaded}
        for _ in range(ROUNDS):
            for name, one in loaded.items():
                rates[name].append(rate(one, batch, BURST_SECONDS))
        own = median(rates["fused"])
        for name in loaded:
            cosine = float((vectors[name] * vectors["fused"]).sum(axis=1).min())
            reached = median(rates[name])
            print(
                f"{work.shape.name:16} {len(lengths)} x {lengths[0]:5} {name:6} {reached / 1e6:7.3f} M tok/s "
                f"{reached / own:6.3f} of fused  cosine {cosine:.6f}",
                flush=True,
            )


def main() -> None:
    parser = parser_of(__doc__)
    add_selection(parser, "works")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    for work in WORKS:
        if arguments.only in work.shape.name:
            with tempfile.TemporaryDirectory() as parent:
                measure(work, Path(parent) / "model")


if __name__ == "__main__":
    main()
