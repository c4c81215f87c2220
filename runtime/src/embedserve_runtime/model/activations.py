"""The activations that descriptions name: of the MLP, after a convolution, after a dense layer or in a head."""

from __future__ import annotations

from enum import StrEnum


class Activation(StrEnum):
    """An element-wise function. Each backend has one table of them; encoders have neither IDENTITY nor SIGMOID."""

    IDENTITY = "identity"
    TANH = "tanh"
    RELU = "relu"
    SIGMOID = "sigmoid"
    SILU = "silu"
    GELU = "gelu"  # x * Phi(x), by erf: BERT's own form; the tanh approximation moves vectors by up to 5e-4
    GELU_TANH = "gelu_tanh"
