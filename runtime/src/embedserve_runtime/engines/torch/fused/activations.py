"""Activations as the kernels number them: `kernels.rows.apply_activation`."""

from __future__ import annotations

from collections.abc import Mapping

from embedserve_runtime.model.activations import Activation

# `find_fused_obstacle` names the others.
ACTIVATION_KINDS: Mapping[Activation, int] = {
    Activation.GELU: 0,
    Activation.GELU_TANH: 1,
    Activation.RELU: 2,
    Activation.SILU: 3,
}
# Of a product without one.
NO_ACTIVATION = -1
