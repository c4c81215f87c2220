"""Attention in blocks on the ONNX engine: every form around the edges of blocks, against a literal float64 reading.

The blocks and the longest sequence in one table are made small here, so that the lengths of a test cover many blocks.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from embedserve_runtime.engines.onnx import attention, attention_blocks, attention_calls
from embedserve_runtime.engines.onnx.engine import OnnxEngine
from embedserve_runtime.forward import grouping
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.model.architecture import Layer
from embedserve_runtime.model.checkpoint import Checkpoint, Weights
from tests.runtime.engines.naive import Naive
from tests.runtime.engines.test_forms import (
    ATTENTION,
    LAYER,
    LAYERS,
    VOCABULARY,
    encoder_of,
    random_parameters,
    with_attention,
)
from tests.support.tolerances import TINY_MODEL_MAX_ABS_DIFF

BLOCK = 4
MAX_IN_ONE_TABLE = 6
FORMS: dict[str, tuple[Layer, ...]] = {
    **LAYERS,
    "window narrower than a block": (with_attention(ATTENTION, window=BLOCK - 1),),
    "window of a block": (with_attention(ATTENTION, window=BLOCK),),
    "window wider than the longest": (with_attention(ATTENTION, window=100),),
    "causal window of two blocks": (with_attention(ATTENTION, causal=True, window=2 * BLOCK),),
    "windows and all, norms inside": (
        replace(LAYER, inner_norm=True),
        with_attention(ATTENTION, window=BLOCK + 1),
    ),
}
# Of the longest sequence in one table, and from there on each number of blocks, full and with one query more or less.
LENGTHS = (1, MAX_IN_ONE_TABLE, 7, 8, 9, 11, 12, 13, 19, 20, 21, 40)
# Around the windows of the forms.
PACKED = ((21, 3, 12, 1), (7, 7), (40, 8, 6, 6, 13))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (attention, attention_blocks):
        monkeypatch.setattr(module, "BLOCK_TOKENS", BLOCK)
    for module in (attention, attention_blocks, attention_calls):
        monkeypatch.setattr(module, "MAX_TOKENS_IN_ONE_TABLE", MAX_IN_ONE_TABLE)
    monkeypatch.setattr(attention_calls, "MAX_TOKENS_IN_PLACE", MAX_IN_ONE_TABLE - 1)
    monkeypatch.setattr(grouping, "MAX_GROUP_TOKENS", MAX_IN_ONE_TABLE)


def build_pair(
    folder: Path, layers: tuple[Layer, ...], *, has_attention_mask: bool = False
) -> tuple[OnnxEngine, Naive]:
    """The engine of an encoder with these layers, and the reference with the same parameters."""
    encoder = encoder_of(layers)
    parameters = random_parameters(encoder)
    save_file(dict(parameters), folder / "model.safetensors")
    weights = Weights(encoder, Checkpoint.open(folder))
    engine = OnnxEngine.build(encoder, weights, threads=2, has_attention_mask=has_attention_mask)
    return engine, Naive(encoder, {name: value.astype(np.float64) for name, value in parameters.items()})


def pack(lengths: tuple[int, ...]) -> PackedBatch:
    source = np.random.default_rng(len(lengths))
    return PackedBatch.pack([source.integers(0, VOCABULARY, n).astype(np.int32) for n in lengths])


@pytest.mark.parametrize("form", FORMS)
def test_attention_in_blocks_computes_what_the_description_says(tmp_path: Path, form: str) -> None:
    engine, reference = build_pair(tmp_path, FORMS[form])
    for lengths in (*((length,) for length in LENGTHS), *PACKED):
        batch = pack(lengths)
        want = reference.hidden_states(batch)
        difference = np.abs(engine.forward(batch) - want).max()
        assert difference <= TINY_MODEL_MAX_ABS_DIFF * max(1.0, float(np.abs(want).max())), lengths


HIDING: dict[str, tuple[Layer, ...]] = {
    name: LAYERS[name]
    for name in (
        "no biases in the products",
        "causal",
        "ALiBi",
        "disentangled",
        "rotary",
        "capped scores",
        "capped scores, causal window, grouped heads, rotary",
    )
} | {"wide window": (with_attention(ATTENTION, window=20),) * 2}


@pytest.mark.parametrize("form", HIDING)
def test_tokens_that_attention_does_not_see_are_hidden_in_blocks_as_in_one_table(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_blocks, _ = build_pair(tmp_path, HIDING[form], has_attention_mask=True)
    for module in (attention, attention_blocks, attention_calls):
        monkeypatch.setattr(module, "MAX_TOKENS_IN_ONE_TABLE", 1_000)
    in_one_table, _ = build_pair(tmp_path, HIDING[form], has_attention_mask=True)
    for lengths, attended in (((21,), (13,)), ((9, 24, 5, 8), (9, 4, 3, 7)), ((12, 12), (12, 1))):
        batch = replace(pack(lengths), attended_lengths=np.array(attended, dtype=np.int32))
        difference = np.abs(in_blocks.forward(batch) - in_one_table.forward(batch)).max()
        assert difference <= TINY_MODEL_MAX_ABS_DIFF
