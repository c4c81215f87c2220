"""Decides whether the fused encoder can run a description on a device. Knows Triton by name only, which is cheap."""

from __future__ import annotations

from enum import StrEnum
from importlib.util import find_spec

import torch

from embedserve_runtime.model.activations import Activation
from embedserve_runtime.model.architecture import (
    Attention,
    Encoder,
    Experts,
    Layer,
    Mlp,
    NormKind,
    NormPlacement,
)

# Triton's own floor; bfloat16 products, too, begin here.
FIRST_CAPABILITY = (8, 0)
MAX_HEAD_SIZE = 256
# Major numbers of compute capability: Hopper and Blackwell with its tensor memory.
FLASH_MAJORS = (9, 10)


class EightBit(StrEnum):
    """Numbers of products in 8 bit: e4m3 floats or integers."""

    FP8 = "fp8"
    INT8 = "int8"


# The first compute capability whose tensor cores multiply these numbers. Turing multiplies int8 too, and is without
# Triton's kernels.
FIRST_OF_EIGHT_BIT = {EightBit.FP8: (8, 9), EightBit.INT8: (8, 0)}


def find_eight_bit_obstacle(encoder: Encoder, device: torch.device, kind: EightBit) -> str | None:
    """Find what keeps the 8-bit encoder from running `encoder`, which the fused one can run; None if nothing does."""
    needed, has = FIRST_OF_EIGHT_BIT[kind], torch.cuda.get_device_capability(device)
    if has < needed:
        return f"{kind} needs compute capability {needed[0]}.{needed[1]}, the device has {has[0]}.{has[1]}"
    return _find_eight_bit_layer_obstacle(encoder)


def _find_eight_bit_layer_obstacle(encoder: Encoder) -> str | None:
    placements = {layer.placement for layer in encoder.layers}
    if len(placements) != 1 or not placements <= {NormPlacement.PRE, NormPlacement.POST}:
        return "8 bit is for norms before or after all branches"
    for layer in encoder.layers:
        after = layer.placement is NormPlacement.POST
        if layer.inner_norm or (after and not layer.attention_norm):
            return "8 bit is for one norm a branch"
        width = layer.attention.heads * layer.attention.head_size
        sizes = (encoder.hidden_size, width, layer.mlp.intermediate)
        if any(size % 16 for size in sizes):
            return f"8 bit takes widths in steps of 16, not {sizes}"
    return None


def find_triton_obstacle(device: torch.device) -> str | None:
    """Find what keeps Triton's kernels from the device; None if nothing does."""
    if device.type != "cuda":
        return "the fused kernels are for CUDA"
    if find_spec("triton") is None:
        return "triton is not installed"
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) < FIRST_CAPABILITY:
        return f"the fused kernels need compute capability 8.0, the device has {major}.{minor}"
    return None


def find_fused_obstacle(encoder: Encoder, device: torch.device, dtype: torch.dtype) -> str | None:
    """Find what keeps the fused encoder from running `encoder`; None if nothing does."""
    reason = find_triton_obstacle(device)
    if reason is None and dtype not in {torch.float16, torch.bfloat16}:
        reason = f"the fused kernels are for 16 bit, not {dtype}"
    if reason is None and encoder.embeddings.norm_first:
        reason = "the fused kernels have no norm before the projection of the embeddings"
    if reason is None and (encoder.layer_inputs is not None or encoder.output is not None):
        reason = "the fused kernels have no inputs by layer and no product behind the final norm"
    return reason or next(filter(None, map(_find_layer_obstacle, encoder.layers)), None)


def find_flash_obstacle(encoder: Encoder, device: torch.device, dtype: torch.dtype) -> str | None:
    """Find what keeps flash-attn-4 from every layer of an encoder; None if nothing does. Layers that it cannot run have
    our kernel."""
    reason = find_fused_obstacle(encoder, device, dtype)
    if reason is not None:
        return reason
    if find_spec("flash_attn") is None or find_spec("flash_attn.cute") is None:
        return "flash-attn-4 is not installed (pip install 'embedserve-runtime[flash]')"
    major, minor = torch.cuda.get_device_capability(device)
    if major not in FLASH_MAJORS:
        return f"flash-attn-4 is for Hopper and Blackwell, the device has compute capability {major}.{minor}"
    if not any(can_flash_run(layer.attention) for layer in encoder.layers):
        return "flash-attn-4 takes no window, no terms by position, no cap, and head sizes of 64 or 128"
    return None


def can_flash_run(attention: Attention) -> bool:
    """Return whether flash-attn-4 has the form. Windows it has too, and is slower at them."""
    added = (attention.window, attention.distance_bias, attention.disentangled, attention.soft_cap)
    return all(term is None for term in added) and attention.head_size in (64, 128)


def can_run_skinny(layer: Layer) -> bool:
    """Return whether for few tokens the layer's norms are computed by the products that read their result: norms with a
    bias, after each branch, and no gate."""
    return (
        layer.placement is NormPlacement.POST
        and layer.attention_norm
        and not layer.inner_norm
        and layer.norm.kind is NormKind.LAYER
        and layer.norm.bias
        and isinstance(layer.mlp, Mlp)
        and not layer.mlp.gated
    )


def _find_layer_obstacle(layer: Layer) -> str | None:
    if isinstance(layer.mlp, Experts):
        return "the fused kernels have no mixture of experts"
    if layer.attention.value_norm_eps is not None:
        return "the fused kernels have no norm of values"
    if layer.convolution is not None:
        return "the fused kernels have no convolution"
    if layer.mlp.activation is Activation.TANH:
        return "the fused kernels have no tanh inside an MLP"
    if layer.attention.head_size > MAX_HEAD_SIZE:
        return f"the fused kernels take head sizes up to {MAX_HEAD_SIZE}, not {layer.attention.head_size}"
    return None
