"""Activations of dense layers and heads, in float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from embedserve_runtime.forward.arrays import FloatArray
from embedserve_runtime.model.activations import Activation

_HALF, _ONE = np.float32(0.5), np.float32(1)

# erf(x) = x P(x^2) / Q(x^2) on [-4, 4], beyond which it rounds to 1 in float32; the coefficients are those of Eigen and
# XLA, highest power first. numpy has no erf of its own.
_ERF_P = (
    -2.72614225801306e-10,
    2.77068142495902e-08,
    -2.10102402082508e-06,
    -5.69250639462346e-05,
    -7.34990630326855e-04,
    -2.95459980854025e-03,
    -1.60960333262415e-02,
)
_ERF_Q = (
    -1.45660718464996e-05,
    -2.13374055278905e-04,
    -1.68282697438203e-03,
    -7.37332916720468e-03,
    -1.42647390514189e-02,
)
_ERF_END = np.float32(4)


def activate(values: FloatArray, activation: Activation) -> FloatArray:
    """Apply the activation to each value."""
    return FUNCTIONS[activation](values)


def sigmoid(values: FloatArray) -> FloatArray:
    """Compute 1 / (1 + exp(-x)) by tanh, which does not overflow."""
    result: FloatArray = _HALF * (np.tanh(_HALF * values) + _ONE)
    return result


def erf(values: FloatArray) -> FloatArray:
    """Compute the error function, to a few units in float32's last digit."""
    clipped = np.clip(values, -_ERF_END, _ERF_END)
    square = clipped * clipped
    return clipped * _evaluate_polynomial(_ERF_P, square) / _evaluate_polynomial(_ERF_Q, square)


def _evaluate_polynomial(coefficients: tuple[float, ...], values: FloatArray) -> FloatArray:
    total = np.full_like(values, coefficients[0])
    for coefficient in coefficients[1:]:
        total *= values
        total += np.float32(coefficient)
    return total


def _gelu(values: FloatArray) -> FloatArray:
    return _HALF * values * (_ONE + erf(values * np.float32(np.sqrt(0.5))))


def _gelu_tanh(values: FloatArray) -> FloatArray:
    inner = values + np.float32(0.044715) * values * values * values
    gate: FloatArray = _ONE + np.tanh(np.float32(np.sqrt(2 / np.pi)) * inner)
    return _HALF * values * gate


FUNCTIONS: Mapping[Activation, Callable[[FloatArray], FloatArray]] = {
    Activation.IDENTITY: lambda values: values,
    Activation.TANH: np.tanh,
    Activation.RELU: lambda values: np.maximum(values, np.float32(0)),
    Activation.SIGMOID: sigmoid,
    Activation.SILU: lambda values: values * sigmoid(values),
    Activation.GELU: _gelu,
    Activation.GELU_TANH: _gelu_tanh,
}
