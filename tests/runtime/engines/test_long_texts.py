"""Long texts on the ONNX engine with the real sizes of blocks: no table of length x length, and the same rows."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable

import numpy as np
import pytest

from embedserve_runtime.engines.onnx import attention, attention_blocks, attention_calls
from embedserve_runtime.engines.onnx.attention_blocks import BLOCK_TOKENS, MAX_TOKENS_IN_ONE_TABLE
from embedserve_runtime.forward.batch import PackedBatch
from tests.runtime.engines.long_text import FORMS, HEADS, build_engine, describe_encoder, draw_sequence
from tests.support.tolerances import NEIGHBOUR_MAX_ABS_DIFF

LENGTH = 4_096
# One float32 of each query and key for each head: 256 MiB.
TABLE_MIB = LENGTH**2 * HEADS * 4 / 2**20
# Of the longest in one table and the first in blocks, and of a last block that is full or has one query.
LENGTHS = (
    MAX_TOKENS_IN_ONE_TABLE,
    MAX_TOKENS_IN_ONE_TABLE + 1,
    MAX_TOKENS_IN_ONE_TABLE + BLOCK_TOKENS,
    MAX_TOKENS_IN_ONE_TABLE + BLOCK_TOKENS + 1,
)


def measure_growth(length: int, forms: Iterable[str]) -> list[tuple[float, float]]:
    """MiB by which a process grows for one text, at its greatest and afterwards, for each form in turn."""
    program = [sys.executable, "-m", "tests.runtime.engines.long_text", str(length), *forms]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    output = subprocess.run(program, env=environment, check=True, capture_output=True, text=True).stdout
    return [(float(peak), float(held)) for peak, held in map(str.split, output.splitlines())]


def test_no_form_of_attention_has_a_table_of_length_by_length_in_memory() -> None:
    growth = dict(zip(FORMS, measure_growth(LENGTH, FORMS), strict=True))
    assert max(peak for peak, _ in growth.values()) < TABLE_MIB / 2, growth


def test_what_a_long_text_took_is_given_back() -> None:
    ((peak, held),) = measure_growth(4 * LENGTH, ["ALiBi"])
    assert peak > 100, "otherwise the test shows nothing"
    assert held < peak / 5


@pytest.mark.parametrize("form", FORMS)
def test_texts_around_the_edge_of_blocks_have_the_rows_that_one_table_gives(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = describe_encoder(FORMS[form], 1_000)
    batch = PackedBatch.pack([draw_sequence(length, length) for length in (*LENGTHS, 3, 600, 600)])
    in_blocks = build_engine(encoder).forward(batch)
    for module in (attention, attention_blocks, attention_calls):
        monkeypatch.setattr(module, "MAX_TOKENS_IN_ONE_TABLE", 1_000)
    in_one_table = build_engine(encoder).forward(batch)
    assert np.abs(in_blocks - in_one_table).max() <= NEIGHBOUR_MAX_ABS_DIFF
