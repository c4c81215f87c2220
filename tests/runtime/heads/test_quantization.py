from __future__ import annotations

import numpy as np
import pytest
from sentence_transformers.util import quantize_embeddings

from embedserve_runtime.errors import InvalidInput
from embedserve_runtime.heads.dense import normalize
from embedserve_runtime.heads.quantization import OutputDtype, compute_row_scales, quantize

UNIT = normalize(np.random.default_rng(3).standard_normal((200, 384), dtype=np.float32))


@pytest.mark.parametrize("precision", [OutputDtype.BINARY, OutputDtype.UBINARY])
def test_bits_are_those_of_sentence_transformers(precision: OutputDtype) -> None:
    want = quantize_embeddings(UNIT, precision.value)
    np.testing.assert_array_equal(quantize(UNIT, precision), want)
    assert quantize(UNIT, precision).dtype == want.dtype


def test_int8_keeps_cosines_of_unit_vectors() -> None:
    codes = normalize(quantize(UNIT, OutputDtype.INT8).astype(np.float32))
    errors = np.abs(codes @ codes.T - UNIT @ UNIT.T)
    assert errors.mean() < 5e-4
    assert errors.max() < 3e-3
    assert np.vecdot(codes, UNIT).min() > 0.9998


def test_int8_times_its_scale_is_the_vector_and_uint8_is_int8_moved() -> None:
    codes = quantize(UNIT, OutputDtype.INT8)
    back = codes * compute_row_scales(UNIT)[:, None]
    assert np.abs(back - UNIT).max() <= compute_row_scales(UNIT).max() / 2 + 1e-6
    np.testing.assert_array_equal(quantize(UNIT, OutputDtype.UINT8), codes.astype(np.int16) + 128)


def test_a_vector_has_the_same_codes_alone_and_in_a_batch() -> None:
    for precision in OutputDtype:
        np.testing.assert_array_equal(quantize(UNIT[5:6], precision)[0], quantize(UNIT, precision)[5])


def test_what_float16_cannot_hold_is_refused() -> None:
    with pytest.raises(InvalidInput, match="too large for float16"):
        quantize(np.array([[70_000.0]], dtype=np.float32), OutputDtype.FLOAT16)
