"""Activations as functions of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from embedserve_runtime.model.activations import Activation


def _identity(value: Tensor) -> Tensor:
    return value


def _gelu_tanh(value: Tensor) -> Tensor:
    return functional.gelu(value, approximate="tanh")


ACTIVATIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = {
    Activation.IDENTITY: _identity,
    Activation.TANH: torch.tanh,
    Activation.RELU: functional.relu,
    Activation.SIGMOID: torch.sigmoid,
    Activation.SILU: functional.silu,
    Activation.GELU: functional.gelu,
    Activation.GELU_TANH: _gelu_tanh,
}
