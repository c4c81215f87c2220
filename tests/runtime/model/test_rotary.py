"""Rotary settings against transformers' own functions; NTK against the equations of its source, written in torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from embedserve_runtime.errors import ModelInvalid, UnsupportedArchitecture
from embedserve_runtime.model.rotary import (
    RopeParameters,
    RotaryConfig,
    compute_ntk_frequencies,
    describe_rotary,
)

CONFIG = Path("config.json")
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_theta": 500_000.0,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, "rope_theta": 10_000.0}
SETTINGS: dict[str, dict[str, object]] = {
    "plain": {"rope_type": "default", "rope_theta": 10_000.0},
    "another base": {"rope_type": "default", "rope_theta": 160_000.0},
    "linear": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
    "dynamic, at rest": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0},
    "yarn": YARN,
    "yarn with its own attention factor": YARN | {"attention_factor": 0.7},
    "yarn with mscale": YARN | {"mscale": 0.8, "mscale_all_dim": 1.3},
    "yarn with its own borders, not rounded": YARN | {"beta_fast": 20.0, "beta_slow": 2.0, "truncate": False},
    "yarn that does not stretch": YARN | {"factor": 1.0},
    "yarn whose ramp has no width": YARN | {"beta_fast": 1.0, "beta_slow": 1.0, "truncate": False},
    "yarn without the original length": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10_000.0},
    "proportional, a quarter": {
        "rope_type": "proportional",
        "partial_rotary_factor": 0.25,
        "rope_theta": 1_000_000.0,
    },
    "proportional, all, divided": {"rope_type": "proportional", "factor": 2.0, "rope_theta": 10_000.0},
    "llama3": LLAMA3,
    "llama3, nearly all interpolated": LLAMA3 | {"low_freq_factor": 0.001, "high_freq_factor": 500.0},
}


def of_transformers(settings: dict[str, object], head_size: int) -> tuple[torch.Tensor, float]:
    config = LlamaConfig(
        hidden_size=head_size,
        num_attention_heads=1,
        max_position_embeddings=32_768,
        rope_parameters=dict(settings),
    )
    kind = str(settings["rope_type"])
    if kind == "default":
        frequencies, scaling = LlamaRotaryEmbedding.compute_default_rope_parameters(config)
    else:
        frequencies, scaling = ROPE_INIT_FUNCTIONS[kind](config, None)
    return frequencies, scaling


@pytest.mark.parametrize("head_size", [6, 64, 128])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_frequencies_equal_those_of_transformers(settings: dict[str, object], head_size: int) -> None:
    want, want_scaling = of_transformers(settings, head_size)
    got = describe_rotary(CONFIG, RopeParameters.model_validate(settings), head_size, max_positions=32_768)
    # One unit in the last place: torch's float32 power is off by one for about one value in a thousand.
    np.testing.assert_allclose(got.inverse_frequencies, want.numpy(), rtol=2.4e-7, atol=0)
    assert got.scaling == pytest.approx(want_scaling, abs=1e-12)


def test_ntk_scaling_follows_the_equations_of_its_source() -> None:
    base, dimensions, factor, exponent = 160_000.0, 64, 8.0, 0.625
    steps = torch.arange(0, dimensions, 2).float() / dimensions
    fixed = 1 / ((base * factor) ** steps) / factor ** (2 / dimensions)
    np.testing.assert_allclose(compute_ntk_frequencies(base, dimensions, factor, None), fixed, rtol=1e-6)
    rate = torch.tensor(factor).log() / (dimensions / 2) ** exponent
    stretch = (rate * torch.arange(1, dimensions // 2 + 1).float() ** exponent).exp()
    mixed = 1 / (base**steps) / stretch
    np.testing.assert_allclose(compute_ntk_frequencies(base, dimensions, factor, exponent), mixed, rtol=1e-6)


def test_ntk_scaling_by_a_factor_of_one_changes_nothing() -> None:
    plain = describe_rotary(CONFIG, RopeParameters(rope_theta=500.0), 16, max_positions=100)
    assert tuple(compute_ntk_frequencies(500.0, 16, 1.0, 0.625).tolist()) == plain.inverse_frequencies


@pytest.mark.parametrize("kind", ["longrope", "su", "mrope"])
def test_an_unknown_type_is_refused_by_name(kind: str) -> None:
    with pytest.raises(UnsupportedArchitecture, match=f"config.json: rope_type = '{kind}' is not supported"):
        describe_rotary(CONFIG, RopeParameters(type=kind), 16, max_positions=100)


def test_a_partial_rotary_factor_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedArchitecture, match=r"partial_rotary_factor = 0\.5"):
        describe_rotary(CONFIG, RopeParameters(partial_rotary_factor=0.5), 16, max_positions=100)


def test_an_odd_head_cannot_be_turned() -> None:
    with pytest.raises(UnsupportedArchitecture, match="heads of 5 dimensions"):
        describe_rotary(CONFIG, RopeParameters(), 5, max_positions=100)


@pytest.mark.parametrize("kind", ["linear", "ntk", "llama3"])
def test_a_scaling_without_its_factor_is_invalid(kind: str) -> None:
    with pytest.raises(ModelInvalid, match=f"config.json: rope_type '{kind}' needs factor"):
        describe_rotary(CONFIG, RopeParameters(rope_type=kind), 16, max_positions=100)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"rope_theta": 77.0}, {"rope_parameters": {"rope_type": "default", "rope_theta": 77.0}}),
        ({}, {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}}),
        ({"rope_theta": 77.0, "rope_scaling": None}, {"rope_parameters": {"rope_theta": 77.0}}),
        (
            {"rope_theta": 77.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 77.0}},
        ),
        (
            {"rope_theta": 10_000.0, "rope_scaling": YARN, "original_max_position_embeddings": 512},
            {"rope_parameters": YARN | {"original_max_position_embeddings": 512}},
        ),
    ],
    ids=["base", "no setting", "null scaling", "old spelling of the type", "original length outside"],
)
def test_both_ways_to_save_the_settings_mean_the_same(old: dict[str, object], new: dict[str, object]) -> None:
    configs = [
        RotaryConfig.model_validate({"max_position_embeddings": 4096} | settings) for settings in (old, new)
    ]
    first, second = (config.describe_rotary(CONFIG, 64, default_theta=10_000.0) for config in configs)
    assert first == second
