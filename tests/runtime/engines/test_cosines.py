from __future__ import annotations

import numpy as np
import pytest

from embedserve_runtime.forward.cosines import compute_cosines


def test_cosines_of_empty_rows() -> None:
    first = np.array([[1, 0], [0, 0], [0, 0], [3, 4]], dtype=np.float32)
    second = np.array([[1, 1], [0, 0], [1, 0], [6, 8]], dtype=np.float32)
    assert compute_cosines(first, second).tolist() == pytest.approx([2**-0.5, 1, 0, 1])


def test_rows_that_are_not_finite_are_as_far_apart_as_can_be() -> None:
    first, second = np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32)
    second[1, 0] = np.nan
    assert compute_cosines(first, second).tolist() == [1, -1, 1]
