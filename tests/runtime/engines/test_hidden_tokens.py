"""Tokens that attention does not see (`PackedBatch.attended_lengths`), as the filled-up queries of ColBERT have them: a
query whose window has no other key gets zeros from attention, on every engine and as transformers gives it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file
from transformers import ModernBertConfig, ModernBertModel

from embedserve_runtime.engines.onnx.engine import OnnxEngine
from embedserve_runtime.engines.protocol import EncoderEngine
from embedserve_runtime.engines.torch.engine import ForwardOptions, TorchEngine
from embedserve_runtime.engines.torch.kernels import KernelKind
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.model import families
from embedserve_runtime.model.architecture import Encoder, Layer
from embedserve_runtime.model.checkpoint import Checkpoint, Weights
from embedserve_runtime.model.folder import read_folder
from tests.runtime.engines.naive import Naive
from tests.runtime.engines.test_forms import (
    ATTENTION,
    GROUPED,
    LAYER,
    LAYERS,
    MAX_TOKENS,
    ROTARY,
    VOCABULARY,
    encoder_of,
    random_parameters,
    with_attention,
)
from tests.support.models import tiny
from tests.support.tolerances import TINY_MODEL_MAX_ABS_DIFF

Build = Callable[[Encoder, Weights], EncoderEngine]


def _open_torch(device: str) -> Build:
    return lambda encoder, weights: TorchEngine(
        encoder, weights, torch.device(device), torch.float32, ForwardOptions(KernelKind.GROUPED)
    )


ENGINES: Mapping[str, Build] = {
    "onnx": lambda encoder, weights: OnnxEngine.build(encoder, weights, threads=2, has_attention_mask=True),
    "torch": _open_torch("cpu"),
    **({"cuda": _open_torch("cuda")} if torch.cuda.is_available() else {}),
}
WINDOW = 2
FORMS: Mapping[str, tuple[Layer, ...]] = {
    "no window": (LAYER,),
    "window": (with_attention(ATTENTION, window=WINDOW), with_attention(ATTENTION, window=WINDOW)),
    "window of the token alone": (with_attention(ATTENTION, window=0),),
    "causal window, grouped heads, rotary": (
        with_attention(GROUPED, causal=True, window=WINDOW, rotary=ROTARY),
    ),
    "capped scores": (with_attention(ATTENTION, soft_cap=0.5),),
    "capped scores in a window": (with_attention(GROUPED, soft_cap=0.5, window=WINDOW), LAYER),
    "ALiBi": LAYERS["ALiBi"],
    "learned bias, window": (replace(LAYERS["learned bias, causal, window"][0], inner_norm=True),),
    "disentangled": LAYERS["disentangled"],
}


@st.composite
def draw_masked_batches(draw: st.DrawFn) -> PackedBatch:
    """Batches of which some sequences have hidden tokens; the first token of each is seen."""
    lengths = draw(st.lists(st.integers(1, MAX_TOKENS), min_size=1, max_size=5))
    attended = [draw(st.integers(1, length)) for length in lengths]
    source = np.random.default_rng(draw(st.integers(0, 99)))
    batch = PackedBatch.pack([source.integers(0, VOCABULARY, n).astype(np.int32) for n in lengths])
    return replace(batch, attended_lengths=np.array(attended, dtype=np.int32))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("form", FORMS)
def test_whatever_tokens_are_hidden_attention_computes_what_the_description_says(
    tmp_path: Path, form: str, engine: str
) -> None:
    encoder = encoder_of(FORMS[form])
    parameters = random_parameters(encoder)
    save_file(dict(parameters), tmp_path / "model.safetensors")
    built = ENGINES[engine](encoder, Weights(encoder, Checkpoint.open(tmp_path)))
    reference = Naive(encoder, {name: value.astype(np.float64) for name, value in parameters.items()})

    @settings(max_examples=15, deadline=None, derandomize=True, database=None)
    @given(draw_masked_batches())
    def check(batch: PackedBatch) -> None:
        want = reference.hidden_states(batch)
        hidden = built.forward(batch)
        assert np.isfinite(hidden).all()
        assert np.abs(hidden - want).max() <= TINY_MODEL_MAX_ABS_DIFF * max(1.0, float(np.abs(want).max()))

    check()


@pytest.mark.parametrize("engine", ENGINES)
def test_tokens_far_behind_the_last_seen_one_get_what_transformers_gives_them(
    tmp_path: Path, engine: str
) -> None:
    """Its usual attention: of its plain one a query that sees nothing gets the mean of all values."""
    config = ModernBertConfig(
        vocab_size=97,
        hidden_size=36,
        num_hidden_layers=3,
        num_attention_heads=3,
        intermediate_size=50,
        max_position_embeddings=40,
        local_attention=6,
        pad_token_id=0,
    )
    tiny(tmp_path, ModernBertModel, config)
    model = ModernBertModel.from_pretrained(tmp_path, attn_implementation="sdpa").eval()
    encoder = families.describe(read_folder(tmp_path))
    built = ENGINES[engine](encoder, Weights(encoder, Checkpoint.open(tmp_path)))
    ids = np.random.default_rng(0).integers(2, 97, (2, 32)).astype(np.int32)
    attended = np.array([5, 20], dtype=np.int32)
    with torch.no_grad():
        mask = torch.from_numpy(np.arange(32) < attended[:, None]).long()
        want = model(torch.from_numpy(ids).long(), attention_mask=mask).last_hidden_state.numpy()
    hidden = built.forward(replace(PackedBatch.pack(list(ids)), attended_lengths=attended))
    assert np.abs(hidden.reshape(want.shape) - want).max() <= TINY_MODEL_MAX_ABS_DIFF
