"""Whether the fused encoder can run a description on a device. Knows Triton by name only, so that asking is cheap."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from embedserve_runtime.model.architecture import Activation, Encoder, Experts, Layer

# Triton's own floor; bfloat16 products, too, begin here.
FIRST_CAPABILITY = (8, 0)
LARGEST_HEAD = 256


def why_no_triton(device: torch.device) -> str | None:
    """What keeps Triton's kernels from the device, or None."""
    if device.type != "cuda":
        return "the fused kernels are for CUDA"
    if find_spec("triton") is None:
        return "triton is not installed"
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) < FIRST_CAPABILITY:
        return f"the fused kernels need compute capability 8.0, the device has {major}.{minor}"
    return None


def why_not_fused(encoder: Encoder, device: torch.device, dtype: torch.dtype) -> str | None:
    """What keeps the fused encoder from running `encoder`, or None."""
    reason = why_no_triton(device)
    if reason is None and dtype not in {torch.float16, torch.bfloat16}:
        reason = f"the fused kernels are for 16 bit, not {dtype}"
    return reason or next(filter(None, map(_why_not_layer, encoder.layers)), None)


def _why_not_layer(layer: Layer) -> str | None:
    if isinstance(layer.mlp, Experts):
        return "the fused kernels have no mixture of experts"
    if layer.convolution is not None:
        return "the fused kernels have no convolution"
    if layer.mlp.activation is Activation.TANH:
        return "the fused kernels have no tanh inside an MLP"
    if layer.attention.head_size > LARGEST_HEAD:
        return f"the fused kernels take head sizes up to {LARGEST_HEAD}, not {layer.attention.head_size}"
    return None
