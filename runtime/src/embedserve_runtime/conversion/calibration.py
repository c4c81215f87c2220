"""Observes the inputs of each product while calibration texts run through the float32 graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from embedserve_runtime.conversion.quantizing import ObservedRanges
from embedserve_runtime.conversion.rewriting import Product
from embedserve_runtime.engines.onnx.artifacts import MODEL_FILE
from embedserve_runtime.engines.onnx.engine import OnnxEngine, describe_engine
from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch, Tokens
from embedserve_runtime.model.architecture import Encoder

PROBE_FILE = "probe.onnx"
# Tokens of a run, all inputs of which are kept until it has ended.
RUN_TOKENS = 128
# Rows of inputs that are kept of each product.
SAMPLE_ROWS = 192


def build_probing_engine(
    folder: Path,
    encoder: Encoder,
    products: Sequence[Product],
    threads: int,
) -> OnnxEngine:
    """Build an engine that also gives the inputs of the products. folder: of the float32 graph; a file in it is written
    and removed."""
    model = onnx.load(str(folder / MODEL_FILE), load_external_data=False)
    model.graph.output.extend(
        helper.make_tensor_value_info(value, TensorProto.FLOAT, None) for value in _list_input_names(products)
    )
    probe = folder / PROBE_FILE
    probe.write_bytes(model.SerializeToString())
    engine = OnnxEngine.load(encoder, probe, describe_engine("float32", threads))
    probe.unlink()
    return engine


def observe_ranges(
    engine: OnnxEngine,
    products: Sequence[Product],
    texts: Sequence[Tokens],
    on_tokens: Callable[[int], None] = lambda _: None,
) -> Mapping[str, ObservedRanges]:
    """Observe the ranges of the inputs of each product, by the name of its weight. A product that no token came to, as
    of an expert that none chose, is left out.

    on_tokens: is called with the tokens of each batch that has run.
    """
    values = _list_input_names(products)
    collected = {value: _RangeCollector() for value in values}
    step = max(1, sum(map(len, texts)) // SAMPLE_ROWS)
    for batch in pack_batches(texts, RUN_TOKENS):
        for value, observed in zip(values, engine.probe(batch, values), strict=True):
            collected[value].add(observed, step)
        on_tokens(batch.tokens)
    return {
        product.weight: collected[product.value].get_ranges()
        for product in products
        if collected[product.value].rows
    }


def _list_input_names(products: Sequence[Product]) -> list[str]:
    """Name the inputs of the products, each once."""
    return list(dict.fromkeys(product.value for product in products))


def pack_batches(texts: Sequence[Tokens], tokens: int) -> list[PackedBatch]:
    """Pack consecutive texts together as long as they have at most `tokens` tokens; a longer one alone."""
    batches: list[list[Tokens]] = []
    packed = 0
    for text in texts:
        if not batches or packed + len(text) > tokens:
            batches.append([])
            packed = 0
        batches[-1].append(text)
        packed += len(text)
    return [PackedBatch.pack(batch) for batch in batches]


class _RangeCollector:
    """Collects the ranges of the inputs of one product."""

    def __init__(self) -> None:
        self.rows: list[FloatArray] = []
        self._low: FloatArray | float = 0.0
        self._high: FloatArray | float = 0.0

    def add(self, values: FloatArray, step: int) -> None:
        if len(values):
            self._low = np.minimum(self._low, values.min(axis=0))
            self._high = np.maximum(self._high, values.max(axis=0))
            self.rows.append(values[::step].copy())

    def get_ranges(self) -> ObservedRanges:
        rows = np.concatenate(self.rows)
        return ObservedRanges(np.asarray(self._low), np.asarray(self._high), rows[: 2 * SAMPLE_ROWS])
