"""The engines as the tests build them: two threads, float32, on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from embedserve_runtime.engines.base import Engine
from embedserve_runtime.engines.onnx import graph as onnx_graph
from embedserve_runtime.engines.onnx.engine import OnnxEngine
from embedserve_runtime.model import families
from embedserve_runtime.model.architecture import Encoder
from embedserve_runtime.model.checkpoint import Checkpoint, Weights


@dataclass(frozen=True, slots=True)
class EngineKind:
    build: Callable[[Encoder, Weights], Engine]
    why_not: Callable[[Encoder], str | None]


ENGINES: Mapping[str, EngineKind] = {
    "onnx": EngineKind(lambda encoder, weights: OnnxEngine(encoder, weights, threads=2), onnx_graph.why_not),
}


def engine_of(folder: Path, engine: str) -> Engine:
    encoder = families.describe(folder)
    return ENGINES[engine].build(encoder, Weights(encoder, Checkpoint.open(folder)))
