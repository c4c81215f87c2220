"""Ranges that move from a norm into the product after it: the product is the same, and 8 bit loses less of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file
from torch import Tensor

from embedserve_runtime.engines.torch.activation_ranges import observe_ranges
from embedserve_runtime.engines.torch.engine import ForwardOptions, TorchEngine
from embedserve_runtime.engines.torch.fused.quantizing import quantize
from embedserve_runtime.engines.torch.fused.smoothing import compute_smoothing_factors, smooth
from embedserve_runtime.engines.torch.fused.support import EightBit
from embedserve_runtime.engines.torch.kernels import KernelKind
from embedserve_runtime.engines.torch.parameters import Linear, Normalization, Parameters
from embedserve_runtime.forward.batch import PackedBatch
from embedserve_runtime.model.architecture import Encoder, NormKind
from embedserve_runtime.model.checkpoint import Checkpoint, Weights
from tests.runtime.engines.naive import Naive
from tests.runtime.engines.test_forms import LAYERS, VOCABULARY, encoder_of, random_parameters

WIDTH = 96
CPU = torch.device("cpu")
BATCH = PackedBatch.pack(
    [np.random.default_rng(n).integers(0, VOCABULARY, n).astype(np.int32) for n in (9, 1, 16, 2)]
)


def make_norm(kind: NormKind, source: torch.Generator) -> Normalization:
    """A norm with a few channels far larger than the others, as trained norms have them."""
    weight = 1 + 0.2 * torch.randn(WIDTH, generator=source)
    weight[:3] *= 30
    bias = None if kind is NormKind.RMS else torch.randn(WIDTH, generator=source)
    return Normalization(kind, 1e-6, weight, bias)


def round_to_eight_bit(rows: Tensor, kind: EightBit) -> Tensor:
    values, scales = quantize(rows, kind)
    return values.float() * scales[:, None]


@pytest.mark.parametrize("kind", NormKind)
def test_a_smoothed_norm_and_product_compute_what_they_did(kind: NormKind) -> None:
    source = torch.Generator().manual_seed(1)
    norm = make_norm(kind, source)
    linear = Linear(torch.randn((24, WIDTH), generator=source), torch.randn(24, generator=source))
    rows = torch.randn((50, WIDTH), generator=source)
    smoothed, product = smooth(norm, linear, norm(rows).abs().amax(dim=0))
    assert smoothed.exact is norm
    torch.testing.assert_close(product(smoothed.rows(rows)), linear(norm(rows)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", NormKind)
def test_large_channels_leave_more_of_int8_to_the_others_when_they_are_smoothed(kind: NormKind) -> None:
    source = torch.Generator().manual_seed(1)
    norm = make_norm(kind, source)
    linear = Linear(torch.randn((24, WIDTH), generator=source), None)
    rows = torch.randn((50, WIDTH), generator=source)
    smoothed, product = smooth(norm, linear, norm(rows).abs().amax(dim=0))
    want = linear(norm(rows))

    def measure_error(norm_of_rows: Normalization, product_of_rows: Linear) -> float:
        inputs = round_to_eight_bit(norm_of_rows(rows), EightBit.INT8)
        weight = round_to_eight_bit(product_of_rows.weight, EightBit.INT8)
        return float((inputs @ weight.T - want).square().mean())

    assert measure_error(smoothed.rows, product) < 0.5 * measure_error(norm, linear)


def test_factors_have_a_geometric_mean_of_one_and_channels_of_zeros_stay_finite() -> None:
    peaks = torch.tensor([0.0, 1.0, 100.0])
    factors = compute_smoothing_factors(peaks, torch.tensor([[0.0, 1.0, 1.0], [0.0, -2.0, 0.5]]))
    assert bool(torch.isfinite(factors).all())
    assert float(factors.log().sum()) == pytest.approx(0, abs=1e-5)
    assert float(factors[2]) > float(factors[1]) > float(factors[0])


def save_random(folder: Path, encoder: Encoder) -> tuple[Weights, dict[str, NDArray[np.float64]]]:
    values = random_parameters(encoder)
    save_file(dict(values), folder / "model.safetensors")
    wide = {name: value.astype(np.float64) for name, value in values.items()}
    return Weights(encoder, Checkpoint.open(folder)), wide


@pytest.mark.parametrize("form", ["three layers alike", "norms first"])
def test_an_engine_that_streams_its_layers_computes_what_one_that_keeps_them_does(
    tmp_path: Path, form: str
) -> None:
    encoder = encoder_of(LAYERS[form])
    weights, _ = save_random(tmp_path, encoder)
    whole, streamed = (
        TorchEngine(
            encoder, weights, CPU, torch.float32, ForwardOptions(KernelKind.GROUPED, streamed=streams)
        )
        for streams in (False, True)
    )
    for _ in range(2):
        np.testing.assert_array_equal(streamed.forward(BATCH), whole.forward(BATCH))


def test_ranges_are_the_largest_numbers_that_each_layer_reads(tmp_path: Path) -> None:
    encoder = encoder_of(LAYERS["three layers alike"])
    weights, wide = save_random(tmp_path, encoder)
    with torch.inference_mode():
        ranges = observe_ranges(encoder, Parameters(weights, CPU, torch.float32), BATCH)
    assert len(ranges) == len(encoder.layers)
    for number, layer_ranges in enumerate(ranges):
        # With norms after the branches a layer reads the final hidden states of the layers before it.
        before = Naive(replace(encoder, layers=encoder.layers[:number]), wide).hidden_states(BATCH)
        np.testing.assert_allclose(
            layer_ranges.attention.numpy(), np.abs(before).max(axis=0), rtol=1e-4, atol=1e-5
        )
        norm = wide[f"layers.{number}.attention.norm.weight"], wide[f"layers.{number}.attention.norm.bias"]
        bound = encoder.hidden_size**0.5 * np.abs(norm[0]) + np.abs(norm[1])
        assert bool((layer_ranges.mlp.numpy() > 0).all())
        assert bool((layer_ranges.mlp.numpy() <= bound * (1 + 1e-5)).all())
