"""The engines as the tests build them: float32, on the CPU, few threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from embedserve_runtime.engines.onnx.engine import OnnxEngine
from embedserve_runtime.engines.protocol import EncoderEngine
from embedserve_runtime.engines.torch.engine import TorchEngine
from embedserve_runtime.model import families
from embedserve_runtime.model.architecture import Encoder
from embedserve_runtime.model.checkpoint import Checkpoint, Weights
from embedserve_runtime.model.folder import read_folder


@dataclass(frozen=True, slots=True)
class EngineKind:
    build: Callable[[Encoder, Weights], EncoderEngine]


def _onnx(encoder: Encoder, weights: Weights) -> EncoderEngine:
    return OnnxEngine.build(encoder, weights, threads=2)


def _torch(encoder: Encoder, weights: Weights) -> EncoderEngine:
    return TorchEngine(encoder, weights, torch.device("cpu"), torch.float32)


ENGINES: Mapping[str, EngineKind] = {
    "onnx": EngineKind(_onnx),
    "torch": EngineKind(_torch),
}


def engine_of(folder: Path, engine: str) -> EncoderEngine:
    encoder = families.describe(read_folder(folder))
    return ENGINES[engine].build(encoder, Weights(encoder, Checkpoint.open(folder)))
