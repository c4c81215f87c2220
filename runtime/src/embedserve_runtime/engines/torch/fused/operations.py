"""Launches the row-wise kernels and the product with an activation: typed calls around what Triton compiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
from torch import Tensor
from torch.nn import functional
from triton.tools.tensor_descriptor import TensorDescriptor

from embedserve_runtime.engines.torch.attention import RotaryTable
from embedserve_runtime.engines.torch.device_batch import DeviceBatch
from embedserve_runtime.engines.torch.fused.activations import ACTIVATION_KINDS
from embedserve_runtime.engines.torch.fused.hopper import HopperProduct, find_hopper_obstacle
from embedserve_runtime.engines.torch.fused.kernels import products, rows
from embedserve_runtime.engines.torch.fused.kernels.vocabulary import pool_vocabulary
from embedserve_runtime.engines.torch.fused.skinny_gemm import MAX_SKINNY_TOKENS, skinny_linear
from embedserve_runtime.engines.torch.parameters import Linear, Normalization
from embedserve_runtime.engines.torch.tables import EmbeddingTables
from embedserve_runtime.model.activations import Activation
from embedserve_runtime.model.architecture import NormKind
from embedserve_runtime.model.pipeline import Pooling

POOLING_KINDS = {
    Pooling.MEAN: 0,
    Pooling.MEAN_SQRT: 1,
    Pooling.WEIGHTED_MEAN: 2,
    Pooling.MAX: 3,
    Pooling.CLS: 4,
    Pooling.LAST: 5,
}
# Hopper and later have the tensor memory accelerator that the fused product loads by.
FIRST_WITH_ACCELERATOR = (9, 0)
# Below, the library's product and a kernel for the activation are faster (measured on an H100).
MIN_TOKENS_OF_FUSED_PRODUCT = 4096
# On Hopper there is another one, which is faster from here on.
MIN_TOKENS_ON_HOPPER = 2048
SINGLE_ROW_TILES_BELOW = 1024


def _look_up(
    tables: EmbeddingTables, batch: DeviceBatch, norm: Normalization | None, dtype: torch.dtype
) -> Tensor:
    """Return norm(word_embeddings[id] * scale + type row + position row), (tokens, width)."""
    word_embeddings, types, positions = tables.word_embeddings, tables.types, tables.positions
    width = word_embeddings.shape[1]
    out = word_embeddings.new_empty((batch.tokens, width), dtype=dtype)
    kernel: Callable[..., object] = rows.embed[(batch.tokens,)]
    kernel(
        ids=batch.ids,
        types=batch.types,
        starts=batch.starts,
        word_embeddings=word_embeddings,
        type_rows=types,
        position_rows=positions,
        weight=_get_weight(norm),
        bias=_get_bias(norm),
        out=out,
        width=width,
        scale=tables.scale,
        first_position=tables.first_position,
        eps=_get_eps(norm),
        TYPES=0 if types is None else 2,
        POSITIONS=positions is not None,
        NORM=norm is not None,
        RMS=_is_rms(norm),
        BIAS=_get_bias(norm) is not None,
        BLOCK=triton.next_power_of_2(width),
        num_warps=_choose_warps(width),
    )
    return out


def embed_batch(tables: EmbeddingTables, batch: DeviceBatch, dtype: torch.dtype) -> Tensor:
    """Return the input of the first layer, (tokens, hidden)."""
    if tables.projection is None:
        return _look_up(tables, batch, tables.norm, dtype)
    projected = tables.projection(_look_up(tables, batch, None, tables.word_embeddings.dtype))
    return (
        projected.to(dtype) if tables.norm is None else add_and_normalize(projected, tables.norm, dtype=dtype)
    )


@dataclass(frozen=True, slots=True, eq=False)
class UnfinishedBranch:
    """post(values + bias), which is left to the kernel that adds it. values: (tokens, width). bias: (width,)."""

    values: Tensor
    bias: Tensor | None = None
    post: Normalization | None = None


def add_and_normalize(
    branch_input: Tensor | UnfinishedBranch,
    norm: Normalization | None,
    *,
    residual: Tensor | None = None,
    keep: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Compute norm(residual + branch), (tokens, width).

    branch_input: the branch. norm: of the form of the branch's own, where both are. keep: where the sum before `norm`
    goes, which may be an input; without `norm` it is the result. dtype: of the result, None for the branch's.
    """
    bias, post = (None, None) if isinstance(branch_input, Tensor) else (branch_input.bias, branch_input.post)
    branch = branch_input if isinstance(branch_input, Tensor) else branch_input.values
    count, width = branch.shape
    if norm is None and keep is None:
        raise ValueError("neither a norm nor memory for the sum")
    out = keep if norm is None else torch.empty_like(branch, dtype=dtype)
    assert out is not None
    shape = norm or post
    # Several rows a program share the loads of the weights; few rows had better spread over the card.
    tile = 1 if count < SINGLE_ROW_TILES_BELOW else max(1, 4096 // int(triton.next_power_of_2(width)))
    kernel: Callable[..., object] = rows.add_norm[(triton.cdiv(count, tile),)]
    kernel(
        branch=branch,
        residual=residual,
        branch_bias=bias,
        post_weight=_get_weight(post),
        post_bias=_get_bias(post),
        weight=_get_weight(norm),
        bias=_get_bias(norm),
        total=keep,
        out=None if norm is None else out,
        rows=count,
        width=width,
        eps=_get_eps(shape),
        ADD=residual is not None,
        BRANCH_BIAS=bias is not None,
        POST=post is not None,
        KEEP=keep is not None,
        NORM=norm is not None,
        RMS=_is_rms(shape),
        BIAS=_get_bias(shape) is not None,
        ROWS=tile,
        BLOCK=triton.next_power_of_2(width),
        num_warps=_choose_warps(width),
    )
    return out


def apply_rotary(
    qkv: Tensor,
    batch: DeviceBatch,
    heads: tuple[int, int],
    rotary: RotaryTable | None,
    norms: tuple[Normalization, Normalization] | None,
) -> None:
    """Apply the norm of each head and rotary positions, in place, to the queries and keys of (tokens, all heads * head
    size).

    heads: of queries and of keys. norms: likewise.
    """
    (query_heads, key_heads), (query_norm, key_norm) = heads, norms or (None, None)
    size = qkv.shape[1] // (query_heads + 2 * key_heads)
    half = 0 if rotary is None else rotary.cos.shape[-1]
    tile = 16
    kernel: Callable[..., object] = rows.rotate_heads[(triton.cdiv(len(qkv), tile), query_heads + key_heads)]
    kernel(
        qkv=qkv,
        starts=batch.starts,
        cos=None if rotary is None else rotary.cos,
        sin=None if rotary is None else rotary.sin,
        query_weight=_get_weight(query_norm),
        query_bias=_get_bias(query_norm),
        key_weight=_get_weight(key_norm),
        key_bias=_get_bias(key_norm),
        tokens=len(qkv),
        step=qkv.stride(0),
        query_heads=query_heads,
        eps=_get_eps(query_norm),
        HEAD_SIZE=size,
        HALF=half,
        NORM=query_norm is not None,
        RMS=_is_rms(query_norm),
        BIAS=_get_bias(query_norm) is not None,
        ROWS=tile,
        BLOCK_D=max(16, int(triton.next_power_of_2(size))),
        num_warps=2,
    )


def pool(hidden: Tensor, batch: DeviceBatch, pooling: Pooling, into: Tensor, column: int) -> None:
    """Pool one row a sequence, float32, into columns `column` ... of `into` (sequences, columns)."""
    width, block = hidden.shape[1], 32
    kernel: Callable[..., object] = rows.pool[(batch.sequences, triton.cdiv(width, block))]
    kernel(
        hidden=hidden,
        firsts=batch.firsts,
        lasts=batch.lasts,
        origins=batch.origins,
        out=into,
        width=width,
        out_step=into.stride(0),
        column=column,
        KIND=POOLING_KINDS[pooling],
        ROWS=64,
        BLOCK=block,
        num_warps=4,
    )


def pool_vocabulary_logits(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, batch: DeviceBatch, logs: int
) -> Tensor:
    """Return max(0, hidden W^T + b) pooled over each sequence, float32, (sequences, vocabulary): the largest where
    `logs` is 0, else the sum of log(1 + ...) taken `logs` times."""
    (tokens, depth), vocabulary = hidden.shape, len(weight)
    out = hidden.new_zeros((batch.sequences, vocabulary), dtype=torch.float32)
    kernel: Callable[..., object] = pool_vocabulary[(triton.cdiv(tokens, 128), triton.cdiv(vocabulary, 128))]
    kernel(
        hidden=hidden,
        weight=weight,
        bias=bias,
        ends=batch.ends,
        sequence_of=batch.sequence_of,
        out=out,
        tokens=tokens,
        vocabulary=vocabulary,
        depth=depth,
        HAS_BIAS=bias is not None,
        LOGS=logs,
        PRECISION="ieee",
        BLOCK_M=128,
        BLOCK_N=128,
        BLOCK_K=64,
        num_warps=8,
        num_stages=3,
    )
    return out


class ActivatedProduct:
    """activation(x W^T + b), or activation(gate) * up with both in one product."""

    def __init__(self, linear: Linear, activation: Activation, gated: bool) -> None:
        self.linear = linear
        self.kind = ACTIVATION_KINDS[activation]
        self._gated = gated
        weight = linear.weight
        self._hopper: HopperProduct | None = None
        self._descriptor: TensorDescriptor | None = None
        if weight.is_cuda and find_hopper_obstacle(weight) is None:
            self._hopper = HopperProduct(weight, linear.bias, kind=self.kind, gated=gated)
        elif can_be_fused(weight, gated):
            self._descriptor = TensorDescriptor.from_tensor(weight, [128, 64])
            # Without a gate two programs share a multiprocessor: one multiplies while the other is at its activations.
            together = 1 if gated else 2
            count = torch.cuda.get_device_properties(weight.device).multi_processor_count
            self._programs = together * count

    def __call__(self, value: Tensor) -> Tensor:
        if not self._gated and len(value) <= MAX_SKINNY_TOKENS:
            return skinny_linear(value, self.linear, kind=self.kind)
        if self._hopper is not None and len(value) >= MIN_TOKENS_ON_HOPPER:
            return self._hopper(value, value.new_empty((len(value), self._hopper.columns)))
        if self._descriptor is not None and len(value) >= MIN_TOKENS_OF_FUSED_PRODUCT:
            return self._run_fused(value, self._descriptor)
        return self._run_in_two(value)

    def _run_in_two(self, value: Tensor) -> Tensor:
        inner = functional.linear(value, self.linear.weight, self.linear.bias)
        width = inner.shape[1] // 2 if self._gated else inner.shape[1]
        out = inner.new_empty((len(inner), width)) if self._gated else inner
        block = 1024
        kernel: Callable[..., object] = rows.activate[(triton.cdiv(out.numel(), block),)]
        kernel(
            inner=inner,
            out=out,
            total=out.numel(),
            width=width,
            GATED=self._gated,
            KIND=self.kind,
            BLOCK=block,
            num_warps=4,
        )
        return out

    def _run_fused(self, value: Tensor, right: TensorDescriptor) -> Tensor:
        (count, depth), bias = value.shape, self.linear.bias
        width = len(self.linear.weight) // 2 if self._gated else len(self.linear.weight)
        out = value.new_empty((count, width))
        kernel: Callable[..., object] = products.product_activated[(self._programs,)]
        kernel(
            left=TensorDescriptor.from_tensor(value, [128, 64]),
            right=right,
            bias=bias,
            out=out,
            rows=count,
            columns=width,
            depth=depth,
            GATED=self._gated,
            HAS_BIAS=bias is not None,
            KIND=self.kind,
            BLOCK_M=128,
            BLOCK_N=128,
            BLOCK_K=64,
            GROUP_M=8,
            PROGRAMS=self._programs,
            FLATTEN=not self._gated,
            num_warps=8 if self._gated else 4,
            num_stages=3,
        )
        return out


def can_be_fused(weight: Tensor, gated: bool) -> bool:
    """Return whether the tensor memory accelerator is available and can address the weight and the result.

    Its rows must be multiples of 16 bytes, and a tile of a gate must not reach into the rows of the up product.
    """
    if not weight.is_cuda or torch.cuda.get_device_capability(weight.device) < FIRST_WITH_ACCELERATOR:
        return False
    width = len(weight) // 2 if gated else len(weight)
    return weight.element_size() == 2 and width % 8 == 0 and weight.shape[1] % 8 == 0


def _get_weight(norm: Normalization | None) -> Tensor | None:
    return None if norm is None else norm.weight


def _get_bias(norm: Normalization | None) -> Tensor | None:
    return None if norm is None else norm.bias


def _get_eps(norm: Normalization | None) -> float:
    return 0.0 if norm is None else norm.eps


def _is_rms(norm: Normalization | None) -> bool:
    return norm is not None and norm.kind is NormKind.RMS


def _choose_warps(width: int) -> int:
    return 4 if width <= 1024 else 8
