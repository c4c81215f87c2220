"""Rotary positions of config.json: the settings as transformers 4 and 5 save them, to inverse frequencies.

Pure functions. The formulas are those of `ROPE_INIT_FUNCTIONS` in transformers' modeling_rope_utils.py, and in
float32 as there: at position 30,000 one unit in the last digit of a frequency already moves an angle by 1e-3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import PositiveFloat, PositiveInt

from embedserve_runtime.errors import ModelInvalid, UnsupportedArchitecture
from embedserve_runtime.model.architecture import Rotary
from embedserve_runtime.model.files import FileModel

Frequencies = NDArray[np.float32]


class RopeParameters(FileModel):
    """`rope_scaling` of transformers 4 or `rope_parameters` of transformers 5 (which also carries the base)."""

    rope_type: str | None = None
    type: str | None = None  # the older spelling of rope_type
    rope_theta: PositiveFloat | None = None
    partial_rotary_factor: PositiveFloat | None = None
    factor: PositiveFloat | None = None
    original_max_position_embeddings: PositiveInt | None = None
    attention_factor: PositiveFloat | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    low_freq_factor: PositiveFloat | None = None
    high_freq_factor: PositiveFloat | None = None
    mixed_b: float | None = None

    @property
    def kind(self) -> str:
        return self.rope_type or self.type or "default"


class RotaryConfig(FileModel):
    """The keys of a config.json with one rotary setting for all layers."""

    max_position_embeddings: PositiveInt
    original_max_position_embeddings: PositiveInt | None = None
    rope_theta: PositiveFloat | None = None
    partial_rotary_factor: PositiveFloat | None = None
    rope_scaling: RopeParameters | None = None
    rope_parameters: RopeParameters | None = None

    def describe_rotary(self, path: Path, head_size: int, default_theta: float) -> Rotary:
        """Describe the rotary positions of a layer. Source of the precedence:
        `RotaryEmbeddingConfigMixin.convert_rope_params_to_dict` of transformers."""
        parameters = self.rope_scaling or self.rope_parameters or RopeParameters()
        settings = parameters.model_copy(
            update={
                "rope_theta": parameters.rope_theta or self.rope_theta or default_theta,
                "partial_rotary_factor": parameters.partial_rotary_factor or self.partial_rotary_factor,
                "original_max_position_embeddings": self.original_max_position_embeddings
                or parameters.original_max_position_embeddings,
            }
        )
        return describe_rotary(path, settings, head_size, self.max_position_embeddings)


class LayerTypesConfig(FileModel):
    """The keys of a config.json with one rotary setting for global ("full") layers and one for local ones."""

    rope_scaling: RopeParameters | None = None
    rope_parameters: Mapping[str, RopeParameters | None] | None = None

    def find_parameters(self, layer_type: str, theta: float, scaled: bool) -> RopeParameters:
        """Find the settings of one type of layer. theta: the base where none is written there; scaled: whether
        transformers 4's `rope_scaling` counts for this type."""
        parameters = (self.rope_parameters or {}).get(layer_type) or RopeParameters()
        if scaled and self.rope_scaling is not None:
            written = self.rope_scaling.model_dump(exclude_unset=True)
            parameters = parameters.model_copy(update=written)
        return parameters if parameters.rope_theta else parameters.model_copy(update={"rope_theta": theta})


def describe_rotary(path: Path, settings: RopeParameters, dimensions: int, max_positions: int) -> Rotary:
    """Describe the rotary positions of `settings`. Raises UnsupportedArchitecture or ModelInvalid naming `path`.

    dimensions: of a head; max_positions: the longest sequence of the model.
    """
    if settings.partial_rotary_factor not in (None, 1.0) and settings.kind != "proportional":
        raise UnsupportedArchitecture(
            f"{path}: partial_rotary_factor = {settings.partial_rotary_factor} is not supported"
        )
    if dimensions % 2:
        raise UnsupportedArchitecture(f"{path}: rotary positions on heads of {dimensions} dimensions (odd)")
    base = settings.rope_theta or 10_000.0
    scaling = 1.0
    match settings.kind:
        case "default":
            frequencies = compute_frequencies(base, dimensions)
        case "linear":
            frequencies = compute_frequencies(base, dimensions) / np.float32(
                _read_number(path, settings, "factor")
            )
        case "dynamic":
            # At rest: no sequence is longer than max_position_embeddings, so the base never grows.
            frequencies = compute_frequencies(base, dimensions)
        case "ntk":
            frequencies = compute_ntk_frequencies(
                base, dimensions, _read_number(path, settings, "factor"), settings.mixed_b
            )
        case "proportional":
            frequencies = _compute_proportional(settings, base, dimensions)
        case "yarn":
            frequencies, scaling = _compute_yarn(settings, base, dimensions, max_positions)
        case "llama3":
            frequencies = _compute_llama3(path, settings, base, dimensions, max_positions)
        case kind:
            raise UnsupportedArchitecture(f"{path}: rope_type = {kind!r} is not supported")
    return Rotary(tuple(float(value) for value in frequencies), scaling)


def compute_frequencies(base: float, dimensions: int) -> Frequencies:
    """Compute base^(-2i / dimensions)."""
    return np.float32(1) / _compute_powers(base, dimensions)


def _compute_powers(base: float, dimensions: int) -> Frequencies:
    exponents = np.arange(0, dimensions, 2, dtype=np.float32) / np.float32(dimensions)
    # Raised in double and rounded once, which is what torch's float32 power gives; NumPy's own is a unit off for some
    # numbers.
    return np.power(np.float64(base), exponents.astype(np.float64)).astype(np.float32)


def compute_ntk_frequencies(
    base: float, dimensions: int, factor: float, mixed_b: float | None
) -> Frequencies:
    """Compute frequencies with fixed NTK scaling, or mixed with exponent `mixed_b`.

    Source: `NTKScalingRotaryEmbedding` of the repository Alibaba-NLP/new-impl, equations (6), (10), (12) and (13) of
    https://kexue.fm/archives/9706. With a factor of 1 or less that code never leaves the plain frequencies.
    """
    if factor <= 1:
        return compute_frequencies(base, dimensions)
    if mixed_b is None:
        return compute_frequencies(base * factor, dimensions) / np.float32(factor ** (2 / dimensions))
    half = dimensions // 2
    rate = np.log(np.float32(factor)) / np.float32(half**mixed_b)
    stretch = np.exp(rate * np.arange(1, half + 1, dtype=np.float32) ** np.float32(mixed_b))
    scaled: Frequencies = (compute_frequencies(base, dimensions) / stretch).astype(np.float32)
    return scaled


def _compute_proportional(settings: RopeParameters, base: float, dimensions: int) -> Frequencies:
    """Compute plain frequencies for the first part of the dimensions, and zeros for the others."""
    frequencies = compute_frequencies(base, dimensions)
    frequencies[int((settings.partial_rotary_factor or 1.0) * dimensions // 2) :] = 0.0
    divided: Frequencies = frequencies / np.float32(settings.factor or 1.0)
    return divided


def _compute_yarn(
    settings: RopeParameters, base: float, dimensions: int, max_positions: int
) -> tuple[Frequencies, float]:
    """Compute YaRN (https://arxiv.org/abs/2309.00071): (frequencies, factor of cos and sin)."""
    original = settings.original_max_position_embeddings or max_positions
    factor = settings.factor if settings.factor is not None else max_positions / original

    def find_dimension(rotations: float) -> float:
        return dimensions * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = find_dimension(settings.beta_fast or 32), find_dimension(settings.beta_slow or 1)
    if settings.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dimensions - 1)
    if low == high:
        high += 0.001  # as the source: the ramp must have a width
    steps = np.arange(dimensions // 2, dtype=np.float32)
    ramp = np.clip((steps - np.float32(low)) / np.float32(high - low), 0, 1)
    extrapolated_share = np.float32(1) - ramp
    powers = _compute_powers(base, dimensions)
    interpolated, extrapolated = np.float32(1) / (np.float32(factor) * powers), np.float32(1) / powers
    frequencies = interpolated * (np.float32(1) - extrapolated_share) + extrapolated * extrapolated_share
    return frequencies, _compute_yarn_attention_factor(settings, factor)


def _compute_yarn_attention_factor(settings: RopeParameters, factor: float) -> float:
    def compute_mscale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if settings.attention_factor is not None:
        return settings.attention_factor
    if settings.mscale and settings.mscale_all_dim:
        return compute_mscale(settings.mscale) / compute_mscale(settings.mscale_all_dim)
    return compute_mscale(1.0)


def _compute_llama3(
    path: Path, settings: RopeParameters, base: float, dimensions: int, max_positions: int
) -> Frequencies:
    """Compute the frequencies of Llama 3.1: short waves stay, long ones are divided, others interpolated."""
    original = settings.original_max_position_embeddings or max_positions
    factor = np.float32(_read_number(path, settings, "factor"))
    low, high = (
        _read_number(path, settings, "low_freq_factor"),
        _read_number(path, settings, "high_freq_factor"),
    )
    plain = compute_frequencies(base, dimensions)
    wave = np.float32(2 * math.pi) / plain
    smooth = (np.float32(original) / wave - np.float32(low)) / np.float32(high - low)
    between = (np.float32(1) - smooth) * plain / factor + smooth * plain
    long_waves = np.where(wave > np.float32(original / low), plain / factor, between)
    return np.where(wave < np.float32(original / high), plain, long_waves).astype(np.float32)


def _read_number(path: Path, settings: RopeParameters, field: str) -> float:
    value: float | None = getattr(settings, field)
    if value is None:
        raise ModelInvalid(f"{path}: rope_type {settings.kind!r} needs {field}")
    return value
