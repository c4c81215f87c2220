"""What goes into each product while calibration texts run through the float32 graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from embedserve_runtime.conversion.quantizing import Seen
from embedserve_runtime.conversion.rewriting import Product
from embedserve_runtime.engines.base import FloatArray, PackedBatch, Tokens
from embedserve_runtime.engines.onnx.artifacts import MODEL_FILE
from embedserve_runtime.engines.onnx.engine import OnnxEngine
from embedserve_runtime.model.architecture import Encoder

PROBE_FILE = "probe.onnx"
# Tokens of a run, all inputs of which are kept until it has ended.
RUN_TOKENS = 128
# Rows kept of each product's inputs.
ROWS = 192


def probing_engine(
    folder: Path, encoder: Encoder, products: Sequence[Product], threads: int, *, hides_tokens: bool = False
) -> OnnxEngine:
    """An engine that gives what goes into the products, besides. folder: of the float32 graph; a file in it is written
    and removed."""
    model = onnx.load(str(folder / MODEL_FILE), load_external_data=False)
    model.graph.output.extend(
        helper.make_tensor_value_info(value, TensorProto.FLOAT, None) for value in _values(products)
    )
    probe = folder / PROBE_FILE
    probe.write_bytes(model.SerializeToString())
    engine = OnnxEngine.load(encoder, probe, "float32", threads, hides_tokens=hides_tokens)
    probe.unlink()
    return engine


def observe(engine: OnnxEngine, products: Sequence[Product], texts: Sequence[Tokens]) -> Mapping[str, Seen]:
    """What was seen of the inputs of each product, by the name of its weight. A product that no token came to, as of
    an expert that none chose, is left out."""
    values = _values(products)
    collected = {value: _Collected() for value in values}
    step = max(1, sum(map(len, texts)) // ROWS)
    for batch in batches_of(texts, RUN_TOKENS):
        for value, seen in zip(values, engine.probe(batch, values), strict=True):
            collected[value].add(seen, step)
    return {one.weight: collected[one.value].seen() for one in products if collected[one.value].rows}


def _values(products: Sequence[Product]) -> list[str]:
    """Several products may have the same input."""
    return list(dict.fromkeys(product.value for product in products))


def batches_of(texts: Sequence[Tokens], tokens: int) -> list[PackedBatch]:
    """Consecutive texts together as long as they have at most so many tokens; a longer one alone."""
    batches: list[list[Tokens]] = []
    held = 0
    for text in texts:
        if not batches or held + len(text) > tokens:
            batches.append([])
            held = 0
        batches[-1].append(text)
        held += len(text)
    return [PackedBatch.pack(batch) for batch in batches]


class _Collected:
    """Inputs of one product so far."""

    def __init__(self) -> None:
        self.rows: list[FloatArray] = []
        self._low: FloatArray | float = 0.0
        self._high: FloatArray | float = 0.0

    def add(self, values: FloatArray, step: int) -> None:
        if len(values):
            self._low = np.minimum(self._low, values.min(axis=0))
            self._high = np.maximum(self._high, values.max(axis=0))
            self.rows.append(values[::step].copy())

    def seen(self) -> Seen:
        rows = np.concatenate(self.rows)
        return Seen(np.asarray(self._low), np.asarray(self._high), rows[: 2 * ROWS])
