"""Quantization of products to 8 bit, with the error that it causes. Pure functions on arrays.

Two forms. STATIC: inputs unsigned in 8 bit with one scale, weights signed with a scale a column (asymmetric
and symmetric uniform quantization). A few columns of a transformer's hidden states are 10 times larger than the rest,
which one scale cannot serve, so inputs are divided by a factor a column first and weights multiplied by it
("smoothing": SmoothQuant, Xiao et al. 2022, arXiv:2211.10438). The factors are found from inputs of calibration texts.
BLOCKS: weights and inputs in blocks of consecutive columns, each with its own scale, the inputs' found anew for each
token. Closer, for values of any size, and about half as fast.

The error of a form is the mean over tokens of |y' - y|^2 / |y|^2: each token counts the same, however large it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embedserve_runtime.forward.arrays import FloatArray

Int8Array = NDArray[np.int8]
UInt8Array = NDArray[np.uint8]

# Inputs this much beyond all that was seen in calibration are still in range.
HEADROOM = np.float32(1.1)
# How much of a column's size is moved into the weights, in SmoothQuant's sense.
STRENGTHS = (0.6, 0.8, 0.9)
# Columns are cut down to the size of the one at this quantile.
QUANTILES = (0.5, 0.9, 0.98)
# What a pass over the inputs to smooth them has to be worth.
SMOOTHING_GAIN = 1.2
# Columns of a product that the forms are compared on.
SAMPLED_COLUMNS = 128
TINY = np.float32(1e-8)


@dataclass(frozen=True, slots=True, eq=False)
class ObservedRanges:
    """The ranges of the inputs of a product while calibration texts ran.

    low, high (columns,): least and greatest value of each column,
    0 included; rows (tokens, columns): those of some tokens.
    """

    low: FloatArray
    high: FloatArray
    rows: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class StaticQuantization:
    """Quantization with one scale for all inputs.

    factors: (columns,), what inputs are divided by first, None for nothing. A quantized input is
    round(x / scale) + zero_point within 0 to 255.
    """

    factors: FloatArray | None
    scale: np.float32
    zero_point: int


@dataclass(frozen=True, slots=True)
class BlockQuantization:
    """Quantization with a scale for each block of columns. size: columns of a block."""

    size: int


def quantize_static(
    weight: FloatArray, form: StaticQuantization, max_weight: int
) -> tuple[Int8Array, FloatArray]:
    """Return a weight as int8 of at most `max_weight`, (columns, outputs), and the scale of each output."""
    if form.factors is not None:
        weight = weight * form.factors[:, None]
    scales = np.maximum(np.abs(weight).max(axis=0), TINY) / np.float32(max_weight)
    return np.rint(weight / scales).astype(np.int8), scales.astype(np.float32)


def quantize_blocks(weight: FloatArray, form: BlockQuantization) -> tuple[UInt8Array, FloatArray]:
    """Return a weight as uint8 (outputs, blocks, size) around 128, and its scales (outputs, blocks). The last block is
    filled up with zeros."""
    columns, outputs = weight.shape
    blocks = -(-columns // form.size)
    padded = np.zeros((outputs, blocks * form.size), dtype=np.float32)
    padded[:, :columns] = weight.T
    values = padded.reshape(outputs, blocks, form.size)
    scales = np.maximum(np.abs(values).max(axis=2), TINY) / np.float32(127)
    return (np.rint(values / scales[..., None]) + 128).astype(np.uint8), scales.astype(np.float32)


def choose_static(
    weight: FloatArray, ranges: ObservedRanges, max_weight: int
) -> tuple[StaticQuantization, float]:
    """Return the static form with the least error, and that error: the one without smoothing unless another is worth
    it."""
    step = max(1, weight.shape[1] // SAMPLED_COLUMNS)
    sample = np.ascontiguousarray(weight[:, ::step])
    plain, *smoothed = [
        (form, compute_quantization_error(sample, ranges.rows, form, max_weight))
        for form in _iterate_static_forms(weight, ranges)
    ]
    best = min(smoothed, key=lambda pair: pair[1])
    return best if best[1] * SMOOTHING_GAIN < plain[1] else plain


def compute_quantization_error(
    weight: FloatArray, rows: FloatArray, form: StaticQuantization, max_weight: int
) -> float:
    """Return the mean over tokens of the squared error of the product relative to its size; rows (tokens, columns)."""
    expected = rows @ weight
    quantized, scales = quantize_static(weight, form, max_weight)
    inputs = rows if form.factors is None else rows / form.factors
    levels = np.clip(np.rint(inputs / form.scale) + form.zero_point, 0, 255) - np.float32(form.zero_point)
    product = (levels * form.scale) @ (quantized * scales)
    size = np.maximum((expected**2).sum(axis=1), TINY)
    return float(np.mean(((product - expected) ** 2).sum(axis=1) / size))


def _iterate_static_forms(weight: FloatArray, ranges: ObservedRanges) -> Iterator[StaticQuantization]:
    """Give the form without smoothing, then the smoothed ones."""
    yield _cover_ranges(ranges, None)
    sizes = np.maximum(np.maximum(ranges.high, -ranges.low), TINY)
    sizes = np.maximum(sizes, np.median(sizes) * np.float32(0.05))
    weights = np.maximum(np.abs(weight).max(axis=1), TINY)
    for strength in STRENGTHS:
        factors = sizes**strength / weights ** (1 - strength)
        yield _cover_ranges(ranges, factors)
        yield _cover_ranges(ranges, np.maximum(factors, np.median(factors)))
    for quantile in QUANTILES:
        yield _cover_ranges(ranges, np.maximum(sizes / np.quantile(sizes, quantile), 1))


def _cover_ranges(ranges: ObservedRanges, factors: NDArray[np.floating] | None) -> StaticQuantization:
    """Return the form whose scale covers the observed ranges and the headroom."""
    divisors = None if factors is None else factors.astype(np.float32)
    low, high = (
        (ranges.low, ranges.high) if divisors is None else (ranges.low / divisors, ranges.high / divisors)
    )
    least, greatest = float(low.min() * HEADROOM), float(high.max() * HEADROOM)
    scale = np.float32(max(greatest - least, float(TINY)) / 255)
    return StaticQuantization(divisors, scale, round(min(255.0, max(0.0, -least / float(scale)))))
