"""Every form that a description can take, on every engine, against a literal float64 reading of it.

The families of the table use these forms in their own combinations; here each stands alone on a hand-made encoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from safetensors.numpy import save_file

from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.model.activations import Activation
from embedserve_runtime.model.architecture import (
    AbsolutePositions,
    Alibi,
    Attention,
    Convolution,
    Disentangled,
    Embeddings,
    Encoder,
    Experts,
    Layer,
    LayerInputs,
    Mlp,
    Norm,
    NormKind,
    NormPlacement,
    QkNorm,
    QkNormScope,
    RelativeBuckets,
    Rotary,
)
from embedserve_runtime.model.checkpoint import Checkpoint, Weights
from embedserve_runtime.model.parameter_names import ParameterNames, TensorSource
from tests.runtime.engines.engines import ENGINES
from tests.runtime.engines.naive import Naive
from tests.support.tolerances import TINY_MODEL_MAX_ABS_DIFF

WINDOW = 5
# One token, two, the window's edge from both sides, the longest sequence.
LENGTHS = (17, 1, 2, WINDOW, WINDOW + 1, WINDOW + 2, 40, 16)
MAX_TOKENS = 40
VOCABULARY = 31
LAYER_NORM = Norm(NormKind.LAYER, 1e-5)
RMS_NORM = Norm(NormKind.RMS, 1e-6)

ATTENTION = Attention(heads=3, kv_heads=3, head_size=8, scale=8**-0.5, qkv_bias=True, output_bias=True)
GROUPED = replace(ATTENTION, heads=6, kv_heads=2)
ROTARY = Rotary(tuple(1e4 ** -(i / 4) for i in range(4)))
BUCKETS = RelativeBuckets(buckets=12, max_distance=20)
MLP = Mlp(intermediate=28, activation=Activation.GELU, gated=False, up_bias=True, down_bias=True)
LAYER = Layer(ATTENTION, MLP, NormPlacement.POST, LAYER_NORM)
DEBERTA = Disentangled(
    span=8,
    buckets=8,
    max_distance=30,
    content_to_position=True,
    position_to_content=True,
    shared_projections=True,
    norm=LAYER_NORM,
)
HEAD_NORM = QkNorm(RMS_NORM, QkNormScope.HEAD)


def with_attention(attention: Attention, **changes: object) -> Layer:
    return replace(LAYER, attention=replace(attention, **changes))  # type: ignore[arg-type]


def with_positions(**changes: object) -> Layer:
    scale = (8 * 3) ** -0.5
    return with_attention(ATTENTION, scale=scale, disentangled=replace(DEBERTA, **changes))  # type: ignore[arg-type]


def with_mlp(**changes: object) -> Layer:
    return replace(LAYER, mlp=replace(MLP, **changes))  # type: ignore[arg-type]


LAYERS: dict[str, tuple[Layer, ...]] = {
    "window": (with_attention(ATTENTION, window=WINDOW),),
    "window of the token alone": (with_attention(ATTENTION, window=0),),
    "causal": (with_attention(ATTENTION, causal=True),),
    "causal window": (with_attention(ATTENTION, causal=True, window=WINDOW),),
    "window in every second layer": (LAYER, with_attention(ATTENTION, window=WINDOW), LAYER),
    "no biases in the products": (with_attention(ATTENTION, qkv_bias=False, output_bias=False),),
    "three layers alike": (LAYER, LAYER, LAYER),
    "a scale of its own": (with_attention(ATTENTION, scale=0.7),),
    "grouped heads": (with_attention(GROUPED),),
    "one key head": (with_attention(GROUPED, kv_heads=1, causal=True),),
    "grouped heads, window, rotary": (with_attention(GROUPED, window=WINDOW, rotary=ROTARY),),
    "grouped heads with ALiBi": (
        with_attention(GROUPED, distance_bias=Alibi((0.5, 0.25, 0.1, 0.4, 0.3, 0.2))),
    ),
    "ALiBi": (with_attention(ATTENTION, distance_bias=Alibi((0.5, 0.25, 0.125))),),
    "ALiBi, different slopes by layer": (
        with_attention(ATTENTION, distance_bias=Alibi((0.5, 0.25, 0.125))),
        with_attention(ATTENTION, distance_bias=Alibi((0.1, 0.2, 0.3)), causal=True),
    ),
    "learned bias by bucket": (with_attention(ATTENTION, distance_bias=BUCKETS),) * 2,
    "learned bias, causal, window": (
        with_attention(ATTENTION, distance_bias=BUCKETS, causal=True, window=WINDOW),
    ),
    "rotary": (with_attention(ATTENTION, rotary=ROTARY),),
    "rotary on a part of the head": (
        with_attention(ATTENTION, rotary=Rotary(ROTARY.inverse_frequencies[:3])),
    ),
    "rotary, scaled, two bases": (
        with_attention(ATTENTION, rotary=replace(ROTARY, scaling=1.3)),
        with_attention(ATTENTION, rotary=Rotary((1.0, 0.5, 0.25, 0.1))),
    ),
    "norm of each head, before rotary": (with_attention(GROUPED, qk_norm=HEAD_NORM, rotary=ROTARY),),
    "norm of all heads": (with_attention(GROUPED, qk_norm=QkNorm(LAYER_NORM, QkNormScope.ALL), kv_heads=3),),
    "capped scores": (with_attention(ATTENTION, soft_cap=0.5),),
    "capped scores, causal window, grouped heads, rotary": (
        with_attention(GROUPED, soft_cap=0.7, causal=True, window=WINDOW, rotary=ROTARY),
        with_attention(GROUPED, soft_cap=0.3),
    ),
    "capped scores with ALiBi": (
        with_attention(ATTENTION, soft_cap=0.5, distance_bias=Alibi((0.5, 0.25, 0.125))),
    ),
    "norm of values": (with_attention(ATTENTION, value_norm_eps=0.01),),
    "norm of values, one key head": (with_attention(GROUPED, kv_heads=1, value_norm_eps=1e-6),),
    "heads of two sizes": (with_attention(GROUPED, window=WINDOW), with_attention(ATTENTION, head_size=12)),
    "norms first": (replace(LAYER, placement=NormPlacement.PRE),) * 2,
    "norms first, none before the first attention": (
        replace(LAYER, placement=NormPlacement.PRE, attention_norm=False),
        replace(LAYER, placement=NormPlacement.PRE),
    ),
    "norms around": (replace(LAYER, placement=NormPlacement.SANDWICH, norm=RMS_NORM),) * 2,
    "RMS norms with an offset": (
        replace(LAYER, placement=NormPlacement.PRE, norm=replace(RMS_NORM, unit_offset=True)),
    ),
    "RMS norms after": (replace(LAYER, norm=RMS_NORM),),
    "a norm inside the attention branch": (replace(LAYER, inner_norm=True),) * 2,
    "layer norms without bias": (replace(LAYER, norm=Norm(NormKind.LAYER, 1e-5, bias=False)),),
    "gated": (with_mlp(gated=True),),
    "gated, no biases": (with_mlp(gated=True, up_bias=False, down_bias=False, activation=Activation.SILU),),
    "no bias before a fused activation": (with_mlp(up_bias=False, activation=Activation.GELU_TANH),),
    "experts, one of five": (replace(LAYER, mlp=Experts(5, 1, 28, Activation.GELU)),),
    "experts, three of four": (replace(LAYER, mlp=Experts(4, 3, 12, Activation.SILU)), LAYER),
    "experts, all, norms first": (
        replace(LAYER, placement=NormPlacement.PRE, mlp=Experts(2, 2, 28, Activation.RELU)),
    ),
    "convolution": (replace(LAYER, convolution=Convolution(3, Activation.GELU)), LAYER),
    "convolution wider than some sequences": (replace(LAYER, convolution=Convolution(7, Activation.TANH)),),
    "convolution of each token alone": (replace(LAYER, convolution=Convolution(1, Activation.RELU)),),
    "disentangled": (with_positions(),) * 2,
    "disentangled, causal window": (
        with_attention(ATTENTION, disentangled=DEBERTA, causal=True, window=WINDOW),
    ),
    "disentangled, own projections": (with_positions(shared_projections=False, norm=None),),
    "disentangled, no buckets": (with_positions(buckets=0),),
    "disentangled, content to position": (with_positions(position_to_content=False),),
    "disentangled, position to content": (with_positions(content_to_position=False),),
}
EMBEDDINGS = Embeddings(VOCABULARY, AbsolutePositions(MAX_TOKENS + 3, 2), token_types=2, norm=LAYER_NORM)
OUTER: dict[str, tuple[Embeddings, Norm | None]] = {
    "words alone, scaled": (Embeddings(VOCABULARY, None, 0, None, scale=4.9), RMS_NORM),
    "words and a type": (Embeddings(VOCABULARY, None, 1, LAYER_NORM), None),
    "no norm": (replace(EMBEDDINGS, norm=None, scale=0.5), LAYER_NORM),
    "narrow tables": (replace(EMBEDDINGS, width=7), None),
    "narrow words, wide hidden states, no norm": (Embeddings(VOCABULARY, None, 0, None, width=5), None),
}


def encoder_of(
    layers: tuple[Layer, ...],
    embeddings: Embeddings = EMBEDDINGS,
    final_norm: Norm | None = None,
    layer_inputs: LayerInputs | None = None,
    output: int | None = None,
) -> Encoder:
    """An encoder whose checkpoint uses our own names."""
    without_names = Encoder(
        family="hand-made",
        hidden_size=20,
        max_positions=MAX_TOKENS,
        embeddings=embeddings,
        layers=layers,
        final_norm=final_norm,
        parameter_names=ParameterNames(("",), MappingProxyType({})),
        layer_inputs=layer_inputs,
        output=output,
    )
    sources = {p.pattern: (TensorSource(p.pattern),) for p in without_names.parameters()}
    return replace(without_names, parameter_names=ParameterNames(("",), MappingProxyType(sources)))


def random_parameters(encoder: Encoder) -> Mapping[str, FloatArray]:
    source = np.random.default_rng(0)
    return {p.name: source.normal(0.1, 0.4, p.shape).astype(np.float32) for p in encoder.parameters()}


def random_batch() -> PackedBatch:
    source = np.random.default_rng(1)
    return PackedBatch.pack([source.integers(0, VOCABULARY, n).astype(np.int32) for n in LENGTHS])


def assert_equals_the_description(folder: Path, encoder: Encoder, engine: str) -> None:
    parameters = random_parameters(encoder)
    save_file(dict(parameters), folder / "model.safetensors")
    batch = random_batch()
    hidden = ENGINES[engine].build(encoder, Weights(encoder, Checkpoint.open(folder))).forward(batch)
    reference = Naive(encoder, {name: value.astype(np.float64) for name, value in parameters.items()})
    want = reference.hidden_states(batch)
    assert np.abs(hidden - want).max() <= TINY_MODEL_MAX_ABS_DIFF * max(1.0, float(np.abs(want).max()))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("form", LAYERS)
def test_a_layer_computes_what_its_description_says(tmp_path: Path, form: str, engine: str) -> None:
    encoder = encoder_of(LAYERS[form])
    assert_equals_the_description(tmp_path, encoder, engine)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("form", OUTER)
def test_embeddings_and_final_norm_compute_what_their_description_says(
    tmp_path: Path, form: str, engine: str
) -> None:
    embeddings, final_norm = OUTER[form]
    layers = (replace(LAYER, placement=NormPlacement.PRE),)
    assert_equals_the_description(tmp_path, encoder_of(layers, embeddings, final_norm), engine)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("placement", [NormPlacement.PRE, NormPlacement.SANDWICH])
def test_inputs_by_layer_and_a_product_at_the_end_compute_what_their_description_says(
    tmp_path: Path, placement: NormPlacement, engine: str
) -> None:
    layers = (replace(LAYER, placement=placement, norm=RMS_NORM),) * 3
    inputs = LayerInputs(width=7, scale=0.3, activation=Activation.GELU_TANH, norm=RMS_NORM)
    encoder = encoder_of(layers, final_norm=RMS_NORM, layer_inputs=inputs, output=11)
    assert_equals_the_description(tmp_path, encoder, engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_encoder_without_layers_is_its_embeddings(tmp_path: Path, engine: str) -> None:
    assert_equals_the_description(tmp_path, encoder_of((), final_norm=RMS_NORM), engine)
