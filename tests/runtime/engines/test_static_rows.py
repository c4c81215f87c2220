"""Tables of any dtype are weighted and added as numpy does it, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16
from numpy.typing import NDArray

from embedserve_runtime.engines.static import EmbeddingTable
from embedserve_runtime.errors import ModelInvalid
from embedserve_runtime.forward.arrays import FloatArray, Int32Array

TOKENS, ROWS, DIMENSIONS, UNKNOWN = 40, 11, 19, 7
LENGTHS = (0, 1, 2, 3, 4, 5, 8, 9, 31)
# numpy has no product of bfloat16 and float16.
PRODUCTS = [
    (table, weights)
    for table in ("float32", "float64", "int8", "float16", "int16", "bfloat16")
    for weights in (None, "float32", "float64", "float16", "int8")
    if (table, weights) != ("bfloat16", "float16")
]
Tensors = dict[str, NDArray[Any]]


def tensors_of(table: str, weights: str | None, *, mapped: bool) -> Tensors:
    source = np.random.default_rng(0)
    values = source.standard_normal((ROWS if mapped else TOKENS, DIMENSIONS)) * 9
    tensors: Tensors = {"embeddings": values.astype(bfloat16 if table == "bfloat16" else table)}
    if weights is not None:
        tensors["weights"] = (source.random(TOKENS) * 9).astype(weights)
    if mapped:
        tensors["mapping"] = source.integers(0, ROWS, TOKENS)
    return tensors


def texts() -> tuple[Int32Array, Int32Array]:
    """Ids, some of them unknown or beyond the vocabulary, and where texts begin and end."""
    ids = np.random.default_rng(1).integers(0, TOKENS + 2, sum(LENGTHS)).astype(np.int32)
    return ids, np.cumsum([0, *LENGTHS], dtype=np.int32)


def counted_texts() -> tuple[Int32Array, Int32Array]:
    """The ids that count, and where each text begins and ends among them."""
    ids, bounds = texts()
    counts = (ids < TOKENS) & (ids != UNKNOWN)
    return ids[counts], np.array([counts[:bound].sum() for bound in bounds], dtype=np.int32)


def by_numpy(tensors: Tensors) -> FloatArray:
    ids, bounds = texts()
    means = np.zeros((len(LENGTHS), DIMENSIONS), dtype=np.float32)
    for text, own in enumerate(np.split(ids, bounds[1:-1])):
        known_ids = own[(own < TOKENS) & (own != UNKNOWN)]
        rows = tensors["embeddings"][tensors["mapping"][known_ids] if "mapping" in tensors else known_ids]
        if "weights" in tensors:
            rows = rows * tensors["weights"][known_ids][:, None]
        if len(rows):
            wide = rows.dtype.kind in "iu" or rows.dtype == np.float64
            means[text] = rows.astype(np.float64 if wide else np.float32).mean(axis=0)
    return means


@pytest.mark.parametrize("mapped", [False, True], ids=["a row each", "shared rows"])
@pytest.mark.parametrize(("table", "weights"), PRODUCTS)
def test_means_are_those_of_numpy(table: str, weights: str | None, *, mapped: bool) -> None:
    tensors = tensors_of(table, weights, mapped=mapped)
    got = EmbeddingTable.build(tensors).compute_means(*counted_texts())
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, by_numpy(tensors))


def test_dtypes_that_have_no_product_are_refused_by_name() -> None:
    with pytest.raises(ModelInvalid, match="a table of bfloat16 with weights of float16"):
        EmbeddingTable.build(tensors_of("bfloat16", "float16", mapped=False))


@pytest.mark.parametrize("weights", [None, "float32", "float64"])
@pytest.mark.parametrize("table", ["float32", "float16", "int8"])
def test_a_token_alone_has_its_row(table: str, weights: str | None) -> None:
    tensors = tensors_of(table, weights, mapped=True)
    ids = np.arange(TOKENS, dtype=np.int32)
    rows = EmbeddingTable.build(tensors)
    means = rows.compute_means(ids, np.arange(TOKENS + 1, dtype=np.int32))
    np.testing.assert_array_equal(rows.look_up(ids), means)


def test_every_number_of_float16_is_read() -> None:
    table = np.arange(2**16, dtype=np.uint16).view(np.float16).reshape(2**10, 64)
    ids, bounds = np.arange(2**10, dtype=np.int32), np.arange(2**10 + 1, dtype=np.int32)
    means = EmbeddingTable.build({"embeddings": table}).compute_means(ids, bounds)
    np.testing.assert_array_equal(means, table.astype(np.float32))
